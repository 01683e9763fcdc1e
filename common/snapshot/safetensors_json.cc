#include "common/snapshot/safetensors_json.h"

#include <cstdint>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "nlohmann/json.hpp"

namespace recon {
namespace {

using Json = nlohmann::json;

absl::Status Broken(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("safetensors: ", what));
}

// What both texts are: an object of members, whose values are objects, arrays or texts. Parsing ends at the
// first rule that is broken. Names that are there twice would be read differently by different readers.
class Reader : public Json::json_sax_t {
 public:
  explicit Reader(int depth_max) : depth_max_(depth_max) {}

  absl::Status Read(absl::string_view json) {
    const bool parsed = Json::sax_parse(json.begin(), json.end(), this);
    if (!failure_.ok()) return failure_;
    if (!parsed) return Broken("header is not JSON");
    return absl::OkStatus();
  }

  bool null() override { return Other("null"); }
  bool boolean(bool) override { return Other("a truth value"); }
  bool number_integer(Json::number_integer_t value) override { return Other(absl::StrCat(value)); }
  bool number_float(Json::number_float_t value, const std::string&) override {
    return Other(absl::StrCat(value));
  }
  bool binary(Json::binary_t&) override { return Other("bytes"); }
  bool start_object(std::size_t) override {
    if (!Deeper()) return false;
    names_.emplace_back();
    return Begin(/*array=*/false);
  }
  bool end_object() override {
    names_.pop_back();
    --depth_;
    return End();
  }
  bool start_array(std::size_t) override { return Deeper() && Begin(/*array=*/true); }
  bool end_array() override {
    --depth_;
    return End();
  }
  bool key(std::string& name) override {
    if (!names_.back().insert(name).second) {
      return Fail(absl::StrCat("\"", ShownName(name), "\" is there twice"));
    }
    return Key(std::move(name));
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 protected:
  // After the depth has changed to what depth() says. False ends the parsing, as Fail() does.
  virtual bool Begin(bool array) = 0;
  virtual bool End() = 0;
  virtual bool Key(std::string name) = 0;
  virtual bool Other(const std::string& what) = 0;

  bool Fail(absl::string_view what) {
    failure_ = Broken(what);
    return false;
  }
  int depth() const { return depth_; }

 private:
  bool Deeper() {
    if (++depth_ > depth_max_) return Fail("header is nested too deeply");
    return true;
  }

  const int depth_max_;
  int depth_ = 0;
  std::vector<std::set<std::string>> names_;  // Of the objects that are open.
  absl::Status failure_;
};

class HeaderReader : public Reader {
 public:
  explicit HeaderReader(SafetensorsHeader* header) : Reader(kDepth), header_(header) {}

  bool number_unsigned(Json::number_unsigned_t value) override {
    if (depth() != kDepth || list_ == nullptr) return Other(absl::StrCat(value));
    if (list_->size() == kDimensionsMax) {
      return Fail(absl::StrCat(ShownName(member_), ": more than ", kDimensionsMax, " dimensions"));
    }
    list_->push_back(value);
    return true;
  }
  bool string(std::string& value) override {
    if (metadata_ && depth() == 2) {
      header_->metadata[field_] = std::move(value);
      return true;
    }
    if (metadata_ || depth() != 2 || field_ != "dtype") return Other("a text");
    header_->tensors.back().dtype = std::move(value);
    return true;
  }

 protected:
  bool Begin(bool array) override {
    if (depth() == 1) return !array || Fail("header is not a JSON object");
    if (depth() == 2) return !array || Fail(NoMember());
    if (!array || metadata_ || depth() != kDepth) return Other(array ? "an array" : "an object");
    list_ = field_ == "shape"          ? &header_->tensors.back().shape
            : field_ == "data_offsets" ? &offsets_
                                       : nullptr;
    return list_ != nullptr || Other("an array");
  }
  bool End() override {
    list_ = nullptr;
    if (depth() != 1 || metadata_) return true;
    if (fields_ != 3) return Fail(ShownName(member_) + ": expected dtype, shape and data_offsets");
    if (offsets_.size() != 2) return Fail(ShownName(member_) + ": data_offsets are not two");
    header_->tensors.back().begin = offsets_[0];
    header_->tensors.back().end = offsets_[1];
    return true;
  }
  bool Key(std::string name) override {
    if (depth() == 2) return Field(std::move(name));
    member_ = std::move(name);
    metadata_ = member_ == "__metadata__";
    field_.clear();
    fields_ = 0;
    offsets_.clear();
    if (metadata_) return true;
    if (header_->tensors.size() == limits::kFileTensorsMax) {
      return Fail(absl::StrCat("more than ", limits::kFileTensorsMax, " tensors"));
    }
    header_->tensors.emplace_back();
    header_->tensors.back().name = member_;
    return true;
  }
  bool Other(const std::string& what) override {
    if (depth() == 0) return Fail("header is not a JSON object");
    if (depth() == 1) return Fail(NoMember());
    if (metadata_) return Fail(absl::StrCat("__metadata__: ", ShownName(field_), " is not a string"));
    return Fail(absl::StrCat(ShownName(member_), ": ", field_, " is or has ", what, ", not of its type"));
  }

 private:
  static constexpr int kDepth = 3;
  static constexpr size_t kDimensionsMax = 64;

  // Of a member that is no object.
  std::string NoMember() const {
    if (metadata_) return "__metadata__ is not an object";
    return ShownName(member_) + ": expected dtype, shape and data_offsets";
  }
  bool Field(std::string name) {
    field_ = std::move(name);
    if (metadata_) return true;
    ++fields_;
    const bool known = field_ == "dtype" || field_ == "shape" || field_ == "data_offsets";
    return known || Fail(ShownName(member_) + ": expected dtype, shape and data_offsets");
  }

  SafetensorsHeader* const header_;
  std::string member_, field_;  // The tensor, or the metadata; and what of it.
  bool metadata_ = false;
  int fields_ = 0;
  std::vector<uint64_t> offsets_;
  std::vector<uint64_t>* list_ = nullptr;  // What numbers belong to.
};

// Only weight_map counts; what else an index has is anything.
class IndexReader : public Reader {
 public:
  explicit IndexReader(std::map<std::string, std::string>* files) : Reader(kDepthMax), files_(files) {}

  bool number_unsigned(Json::number_unsigned_t value) override { return Other(absl::StrCat(value)); }
  bool string(std::string& value) override {
    if (!In()) return Other("a text");
    if (value.empty() || value[0] == '.' || absl::StrContains(value, '/') || absl::StrContains(value, '\0')) {
      return Fail(absl::StrCat("weight_map: ", ShownName(tensor_), " is in \"", ShownName(value),
                               "\": expected the name of a file beside the index"));
    }
    if (files_->size() == limits::kFileTensorsMax) {
      return Fail(absl::StrCat("weight_map has more than ", limits::kFileTensorsMax, " tensors"));
    }
    (*files_)[tensor_] = std::move(value);
    return true;
  }
  bool found() const { return found_; }

 protected:
  bool Begin(bool array) override {
    if (depth() == 1 && array) return Other("an array");
    if (depth() == 2 && member_ == "weight_map") {
      found_ = !array;
      return found_ || Fail("weight_map is not an object");
    }
    return member_ != "weight_map" || depth() == 1 || Other("more");
  }
  bool End() override { return true; }
  bool Key(std::string name) override {
    if (depth() == 1) member_ = std::move(name);
    if (depth() == 2) tensor_ = std::move(name);
    return true;
  }
  bool Other(const std::string& what) override {
    if (depth() == 0 || (depth() == 1 && member_.empty())) return Fail("the index is not a JSON object");
    if (member_ != "weight_map") return true;
    if (depth() == 1) return Fail("weight_map is not an object");
    return Fail(absl::StrCat("weight_map: ", ShownName(tensor_), " is in ", what, ", not in a file"));
  }

 private:
  static constexpr int kDepthMax = 16;

  bool In() const { return depth() == 2 && member_ == "weight_map"; }

  std::map<std::string, std::string>* const files_;
  std::string member_, tensor_;
  bool found_ = false;
};

}  // namespace

absl::Status ReadSafetensorsJson(absl::string_view json, SafetensorsHeader* header) {
  return HeaderReader(header).Read(json);
}

absl::StatusOr<std::map<std::string, std::string>> ReadSafetensorsIndex(absl::string_view json) {
  std::map<std::string, std::string> files;
  IndexReader reader(&files);
  const absl::Status read = reader.Read(json);
  if (!read.ok()) return read;
  if (!reader.found()) return Broken("the index has no weight_map");
  return files;
}

}  // namespace recon
