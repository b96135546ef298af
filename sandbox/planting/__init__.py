"""What a sandbox is given: live topics of every kind and every kind of leak; and whether all is as it was written."""
