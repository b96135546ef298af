"""What the lake keeps, as values and Arrow schemas: tables, epochs, findings, plans, outcomes. No IO, no clock."""
