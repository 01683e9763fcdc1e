#include "common/json/escape_texts.h"

#include <vector>

#include "common/base/plain_text.h"

namespace recon {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

void EscapeField(Message* message, const FieldDescriptor* field) {
  const Reflection* const reflection = message->GetReflection();
  const bool is_message = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
  if (!is_message && field->type() != FieldDescriptor::TYPE_STRING) return;
  if (!field->is_repeated()) {
    if (is_message) {
      EscapeTexts(reflection->MutableMessage(message, field));
    } else {
      reflection->SetString(message, field, EscapeControls(reflection->GetString(*message, field)));
    }
    return;
  }
  for (int i = 0; i < reflection->FieldSize(*message, field); ++i) {
    if (is_message) {
      EscapeTexts(reflection->MutableRepeatedMessage(message, field, i));
    } else {
      reflection->SetRepeatedString(message, field, i,
                                    EscapeControls(reflection->GetRepeatedString(*message, field, i)));
    }
  }
}

}  // namespace

void EscapeTexts(Message* message) {
  std::vector<const FieldDescriptor*> fields;
  message->GetReflection()->ListFields(*message, &fields);
  for (const FieldDescriptor* field : fields) EscapeField(message, field);
}

}  // namespace recon
