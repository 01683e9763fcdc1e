#pragma once

#include "google/protobuf/message.h"

namespace recon {

// Escapes every text of a message (EscapeControls), so that a name from elsewhere neither begins a line of a
// table nor moves the terminal's cursor. For what people read: JSON escapes by itself.
// Pure.
void EscapeTexts(google::protobuf::Message* message);

}  // namespace recon
