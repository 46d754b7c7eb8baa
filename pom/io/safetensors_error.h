// One kind of error per way a safetensors file (or a request to write one) can be wrong.
#pragma once

#include <string>
#include <string_view>

#include "pom/base/error.h"

namespace pom::io {

// The message names the file, the tensor where there is one, what was expected and what came. Failures of the
// system (no such file, disk full) are plain pom::Error.
class SafetensorsError : public Error {
 public:
  enum class Kind {
    // the frame: 8 bytes of length, the header, the data
    FileTooSmall,      // fewer than 8 bytes
    HeaderTooLarge,    // more than 100,000,000 bytes
    HeaderBeyondFile,  // the length points past the end of the file
    HeaderStart,       // the header does not begin with '{'
    // the header as JSON
    InvalidUtf8,
    JsonSyntax,
    JsonTruncated,
    JsonTrailing,  // something other than white space after the closing '}'
    ControlCharacter,
    BadEscape,
    LoneSurrogate,
    NumberNegative,
    NumberFractional,
    NumberLeadingZero,
    NumberOverflow,
    // the header as a table of tensors
    MetadataNotObject,
    MetadataValueNotString,
    TensorNotObject,
    DtypeNotString,
    ShapeNotArray,
    OffsetsNotPair,
    NotAnInteger,  // within shape or data_offsets
    UnknownDtype,
    UnknownField,
    MissingField,
    DuplicateField,
    DuplicateTensor,
    DuplicateMetadata,
    DuplicateMetadataKey,
    // the tensors against the data
    ShapeOverflow,
    PartialByte,  // elements smaller than a byte that do not fill the last one
    SizeMismatch,
    OffsetsReversed,
    OffsetsOutOfRange,
    Overlap,
    Hole,
    TrailingBytes,
    // requests
    NoSuchTensor,
    ReservedName,
    NegativeDimension,
  };

  SafetensorsError(Kind kind, const std::string& message) : Error(message), kind_(kind) {}
  Kind kind() const noexcept { return kind_; }

 private:
  Kind kind_;
};

// "HeaderTooLarge" and so on, as spelled above.
std::string_view name(SafetensorsError::Kind kind);

namespace detail {

// A name as it may stand in a message: quoted, and as pom::shown has it.
std::string quote(std::string_view name);

// Where an error is found: the beginning of its message.
struct Site {
  std::string operation;  // "safetensors read"
  std::string file;       // a path, or "<memory>"
  std::string_view tensor = {};
  bool in_tensor = false;

  template <class... Parts>
  [[noreturn]] void fail(SafetensorsError::Kind kind, const Parts&... parts) const {
    throw SafetensorsError(kind, ::pom::detail::concat(prefix(), parts...));
  }
  std::string prefix() const;
};

}  // namespace detail
}  // namespace pom::io
