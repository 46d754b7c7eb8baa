// Names of the kinds of safetensors errors, and the beginnings of their messages.
#include "pom/io/safetensors_error.h"

#include "pom/base/shown.h"

namespace pom::io {

std::string_view name(SafetensorsError::Kind kind) {
  using Kind = SafetensorsError::Kind;
  // A switch and not a table: the compiler then knows when one is missing.
#define POM_NAME(kind) \
  case Kind::kind:     \
    return #kind
  switch (kind) {
    POM_NAME(FileTooSmall);
    POM_NAME(HeaderTooLarge);
    POM_NAME(HeaderBeyondFile);
    POM_NAME(HeaderStart);
    POM_NAME(InvalidUtf8);
    POM_NAME(JsonSyntax);
    POM_NAME(JsonTruncated);
    POM_NAME(JsonTrailing);
    POM_NAME(ControlCharacter);
    POM_NAME(BadEscape);
    POM_NAME(LoneSurrogate);
    POM_NAME(NumberNegative);
    POM_NAME(NumberFractional);
    POM_NAME(NumberLeadingZero);
    POM_NAME(NumberOverflow);
    POM_NAME(MetadataNotObject);
    POM_NAME(MetadataValueNotString);
    POM_NAME(TensorNotObject);
    POM_NAME(DtypeNotString);
    POM_NAME(ShapeNotArray);
    POM_NAME(OffsetsNotPair);
    POM_NAME(NotAnInteger);
    POM_NAME(UnknownDtype);
    POM_NAME(UnknownField);
    POM_NAME(MissingField);
    POM_NAME(DuplicateField);
    POM_NAME(DuplicateTensor);
    POM_NAME(DuplicateMetadata);
    POM_NAME(DuplicateMetadataKey);
    POM_NAME(ShapeOverflow);
    POM_NAME(PartialByte);
    POM_NAME(SizeMismatch);
    POM_NAME(OffsetsReversed);
    POM_NAME(OffsetsOutOfRange);
    POM_NAME(Overlap);
    POM_NAME(Hole);
    POM_NAME(TrailingBytes);
    POM_NAME(NoSuchTensor);
    POM_NAME(ReservedName);
    POM_NAME(NegativeDimension);
  }
#undef POM_NAME
  return "unknown";
}

namespace detail {

std::string quote(std::string_view name) {
  return '"' + shown(name) + '"';
}

std::string Site::prefix() const {
  std::string text = operation + ": " + file + ": ";
  if (in_tensor) text += "tensor " + quote(tensor) + ": ";
  return text;
}

}  // namespace detail
}  // namespace pom::io
