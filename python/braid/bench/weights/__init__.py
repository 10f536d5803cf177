"""A step's weights from trainers to workers, beside the same bytes written without a plan."""
