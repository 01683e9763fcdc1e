#include <cstdint>
#include <cstdlib>
#include <string>

#include "common/snapshot/safetensors.h"
#include "common/snapshot/safetensors_json.h"

// Any bytes as an index, and as a header, with the data that its last tensor asks for and with none. What is
// accepted can be written and read again.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  recon::ReadSafetensorsIndex(bytes).IgnoreError();
  recon::SafetensorsHeaderLength(bytes, size).IgnoreError();
  for (const uint64_t data_bytes : {uint64_t{0}, uint64_t{8}, uint64_t{24}}) {
    const auto header = recon::ParseSafetensorsHeader(bytes, data_bytes);
    if (!header.ok()) continue;
    const std::string again = recon::EncodeSafetensorsHeader(header->tensors, header->metadata);
    const auto length = recon::SafetensorsHeaderLength(again, again.size() + data_bytes);
    if (!length.ok() || *length + 8 != again.size()) std::abort();
    const auto reread = recon::ParseSafetensorsHeader(again.substr(8), data_bytes);
    if (!reread.ok() || reread->tensors.size() != header->tensors.size()) std::abort();
  }
  return 0;
}
