"""Products, attention, whole decoder passes and the choice of tokens in C++ for the CPU, built at install where there is a compiler.

    library.py   which instruction set serves, and why
    packing.py   weights in the order in which the kernels read them
    sampling.py  the law of logits, the race on it, the tokens of a batch
    src/         the kernels; kernels.cpp is compiled once per instruction set: avx2.hpp or avx512.hpp, and amx.hpp

Knows pointers and shapes, not models. Without it everything runs on torch.
"""
