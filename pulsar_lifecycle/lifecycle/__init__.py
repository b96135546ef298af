"""What is past its retention in topics that no broker has loaded, and what the bookies hold on their disks."""
