// All of fmt's code, compiled once from its headers (cmake/foreign.cmake).
#define FMT_HEADER_ONLY
#include <fmt/format.h>
#include <fmt/ranges.h>
