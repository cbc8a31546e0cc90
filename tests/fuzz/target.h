// SPDX-License-Identifier: Apache-2.0
// What a fuzz target is: libFuzzer's entry. replay.c calls it too, for each file of a corpus.
#ifndef SPACE_TESTS_TARGET_H
#define SPACE_TESTS_TARGET_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
