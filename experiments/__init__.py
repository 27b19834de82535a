"""Experiments: the command line, configs, training runs and what they leave behind."""
