#include "common/storage/s3_messages.h"

#include <pugixml.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

// The root element, which must have that name.
absl::StatusOr<pugi::xml_node> Parse(absl::string_view xml, const char* root, pugi::xml_document* document) {
  const pugi::xml_parse_result parsed = document->load_buffer(xml.data(), xml.size());
  const pugi::xml_node node = document->child(root);
  if (parsed && node) return node;
  return absl::FailedPreconditionError(
      absl::StrCat("not the answer to expect (", root, "): ", xml.substr(0, 200)));
}

absl::StatusOr<bool> IsTruncated(const pugi::xml_node& listing) {
  const absl::string_view text = listing.child_value("IsTruncated");
  if (text == "true") return true;
  if (text == "false") return false;
  return absl::FailedPreconditionError("a listing that does not say whether it is whole");
}

}  // namespace

absl::StatusOr<S3Listing> ParseS3Listing(absl::string_view xml) {
  pugi::xml_document document;
  RECON_ASSIGN_OR_RETURN(const pugi::xml_node root, Parse(xml, "ListBucketResult", &document));
  S3Listing listing;
  for (const pugi::xml_node& object : root.children("Contents")) {
    listing.keys.emplace_back(object.child_value("Key"));
    if (listing.keys.back().empty())
      return absl::FailedPreconditionError("a listing with an object without a key");
  }
  RECON_ASSIGN_OR_RETURN(const bool truncated, IsTruncated(root));
  if (!truncated) return listing;
  listing.next_token = root.child_value("NextContinuationToken");
  if (listing.next_token.empty())
    return absl::FailedPreconditionError("half a listing that cannot be continued");
  return listing;
}

absl::StatusOr<S3Uploads> ParseS3Uploads(absl::string_view xml) {
  pugi::xml_document document;
  RECON_ASSIGN_OR_RETURN(const pugi::xml_node root, Parse(xml, "ListMultipartUploadsResult", &document));
  S3Uploads found;
  for (const pugi::xml_node& upload : root.children("Upload")) {
    found.uploads.push_back({upload.child_value("Key"), upload.child_value("UploadId")});
    if (found.uploads.back().key.empty() || found.uploads.back().id.empty()) {
      return absl::FailedPreconditionError("a listing with an upload without a key or an id");
    }
  }
  RECON_ASSIGN_OR_RETURN(const bool truncated, IsTruncated(root));
  if (!truncated) return found;
  found.next_key = root.child_value("NextKeyMarker");
  found.next_id = root.child_value("NextUploadIdMarker");
  if (found.next_key.empty()) return absl::FailedPreconditionError("half a listing that cannot be continued");
  return found;
}

absl::StatusOr<std::string> ParseS3UploadId(absl::string_view xml) {
  pugi::xml_document document;
  RECON_ASSIGN_OR_RETURN(const pugi::xml_node root, Parse(xml, "InitiateMultipartUploadResult", &document));
  std::string id = root.child_value("UploadId");
  if (id.empty()) return absl::FailedPreconditionError("an upload without an id");
  return id;
}

bool IsS3Completion(absl::string_view xml) {
  pugi::xml_document document;
  return Parse(xml, "CompleteMultipartUploadResult", &document).ok();
}

std::string ParseS3Error(absl::string_view xml) {
  pugi::xml_document document;
  const auto root = Parse(xml, "Error", &document);
  if (!root.ok()) return "";
  return absl::StrCat(root->child_value("Code"), ": ", root->child_value("Message"));
}

std::string S3CompleteUpload(const std::vector<std::string>& etags) {
  std::string body = "<CompleteMultipartUpload>";
  for (size_t i = 0; i < etags.size(); ++i) {
    const std::string etag =
        absl::StrReplaceAll(etags[i], {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
    absl::StrAppend(&body, "<Part><PartNumber>", i + 1, "</PartNumber><ETag>", etag, "</ETag></Part>");
  }
  return body + "</CompleteMultipartUpload>";
}

}  // namespace recon
