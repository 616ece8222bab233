#pragma once

#include <cstddef>
#include <cstdint>

// The interface of libFuzzer, as far as it is used here.
extern "C" {

/// Runs the code under test. Whatever it must not do ends the process.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

/// Changes `data` in place so that what the input is wrapped in stays sound; gives the new size.
std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                    unsigned int seed);

/// Changes `data` in place, anyhow; gives the new size.
std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);
}
