"""What `headstart distill` is made of: data from the target, training, export, and a report."""
