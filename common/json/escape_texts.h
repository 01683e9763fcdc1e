#pragma once

#include "google/protobuf/message.h"

namespace recon {

// Escapes every text of a message (EscapeControls() in common/base/plain_text.h), so that one from elsewhere
// neither begins a line of a table, moves a terminal's cursor, nor turns what stands behind it. For what
// people read: ToJson() escapes by itself. Pure.
void EscapeTexts(google::protobuf::Message* message);

}  // namespace recon
