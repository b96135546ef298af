"""What runs by itself: schedules, sensors, automation by kind, alerts."""
