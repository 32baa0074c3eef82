"""The included models, a file each. Any other nn.Module trains as well; see `training.task`."""
