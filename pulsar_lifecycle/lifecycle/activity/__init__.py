"""Inactive topics and subscriptions: own history over scans, the rule, reports and plans."""
