/* Random numbers from seeds (SplitMix64), the same on every machine. */
#pragma once
#include <stdint.h>

/* The next number; the seed moves on. */
static uint64_t next(uint64_t *seed)
{
    *seed += 0x9e3779b97f4a7c15u;
    uint64_t z = *seed;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
