"""Bookies' disks: what metadata places on them, what they hold and wait for, and having bookies collect."""
