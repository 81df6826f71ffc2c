"""Sizing a model before it is loaded, or bought for: from its config alone.

source    = config          what a name stands for: built-in, a file, the hub
shape     = shape           parameters and what each layer caches, by family
document  = document        memory on a device, splits, speed; one dictionary
sheets    = sheets          its tables and command lines
"""
