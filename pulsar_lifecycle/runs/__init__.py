"""What every run needs, whatever it does."""
