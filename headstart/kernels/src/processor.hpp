// Whether this processor and its operating system run an instruction set.
#pragma once

bool has_avx2();    // with FMA and F16C
bool has_avx512();  // F, BW, DQ and VL
bool has_amx();     // tiles of bf16, beside AVX-512 with VNNI
