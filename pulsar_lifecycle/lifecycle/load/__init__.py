"""The way ``load`` of retention: which topics need a broker, what it would do to them, and the plan."""
