#include "common/json/message_json.h"

#include <utility>

#include "common/base/plain_text.h"
#include "google/protobuf/descriptor.h"
#include "nlohmann/json.hpp"

namespace recon {
namespace {

using Json = nlohmann::ordered_json;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

Json JsonOf(const Message& message);

// A field's value; of a repeated one, the one at `index`.
Json ValueOf(const Message& message, const FieldDescriptor* field, int index) {
  const google::protobuf::Reflection* reflection = message.GetReflection();
  const bool repeated = field->is_repeated();
  const auto get = [&](auto single, auto of_repeated) {
    return repeated ? (reflection->*of_repeated)(message, field, index)
                    : (reflection->*single)(message, field);
  };
  using R = google::protobuf::Reflection;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return get(&R::GetInt32, &R::GetRepeatedInt32);
    case FieldDescriptor::CPPTYPE_INT64:
      return get(&R::GetInt64, &R::GetRepeatedInt64);
    case FieldDescriptor::CPPTYPE_UINT32:
      return get(&R::GetUInt32, &R::GetRepeatedUInt32);
    case FieldDescriptor::CPPTYPE_UINT64:
      return get(&R::GetUInt64, &R::GetRepeatedUInt64);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return get(&R::GetDouble, &R::GetRepeatedDouble);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return get(&R::GetFloat, &R::GetRepeatedFloat);
    case FieldDescriptor::CPPTYPE_BOOL:
      return get(&R::GetBool, &R::GetRepeatedBool);
    case FieldDescriptor::CPPTYPE_ENUM:
      return get(&R::GetEnum, &R::GetRepeatedEnum)->name();
    case FieldDescriptor::CPPTYPE_STRING:
      return get(&R::GetString, &R::GetRepeatedString);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return JsonOf(repeated ? reflection->GetRepeatedMessage(message, field, index)
                             : reflection->GetMessage(message, field));
  }
  return nullptr;
}

Json RepeatedOf(const Message& message, const FieldDescriptor* field) {
  Json values = field->is_map() ? Json::object() : Json::array();
  for (int i = 0; i < message.GetReflection()->FieldSize(message, field); ++i) {
    Json value = ValueOf(message, field, i);
    if (!field->is_map()) {
      values.push_back(std::move(value));
      continue;
    }
    const Json& key = value["key"];
    values[key.is_string() ? key.get<std::string>() : key.dump()] = value["value"];
  }
  return values;
}

Json JsonOf(const Message& message) {
  Json json = Json::object();
  const google::protobuf::Descriptor* descriptor = message.GetDescriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    if (field->is_repeated()) {
      json[field->name()] = RepeatedOf(message, field);
    } else if (!field->has_presence() || message.GetReflection()->HasField(message, field)) {
      json[field->name()] = ValueOf(message, field, 0);
    }
  }
  return json;
}

}  // namespace

std::string JsonText(const Json& json) {
  return EscapeInJson(json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace));
}

std::string ToJson(const google::protobuf::Message& message) { return JsonText(JsonOf(message)); }

}  // namespace recon
