#pragma once

#include <cstddef>

namespace recon {

// A file of the page, put into the program when it was built (tools/cmake/EmbedFiles.cmake).
struct PageFile {
  const char* path;  // As it is asked for.
  const char* content_type;
  const unsigned char* bytes;
  size_t size;
};

extern const PageFile kPageFiles[];
extern const size_t kPageFileCount;

}  // namespace recon
