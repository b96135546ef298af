"""From the tables of a scan to the plan: what is an orphan, the findings of an epoch, what a second scan confirms."""
