"""Actions: what the planner can do next. Each runs steps and adds observations to the case."""
