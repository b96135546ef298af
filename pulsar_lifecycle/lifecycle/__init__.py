"""What may go by the policies set: retention, loads by order, what nobody uses; and what the bookies' disks hold."""
