"""What is past its retention, in topics that no broker has loaded."""
