"""Products, attention and whole decoder passes in C++ for the CPU, built at install where there is a compiler.

    library.py   which instruction set serves, and why
    packing.py   weights in the order in which the kernels read them
    src/         the kernels; kernels.cpp is compiled once per instruction set

Knows pointers and shapes, not models. Without it everything runs on torch.
"""
