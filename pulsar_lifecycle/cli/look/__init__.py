"""Commands that look and write nothing."""
