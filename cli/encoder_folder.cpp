#include "cli/encoder_folder.h"

#include <optional>
#include <system_error>

#include "cli/command.h"
#include "cli/help.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/codecs/encoder_info.h"
#include "pom/io/sentence_pieces.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;
constexpr const char* pieces_file = "spiece.model";

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += (all.empty() ? "" : ", ") + shown(text);
  return all;
}

// Where a tokenizer lies that belongs to no encoder here; empty: nowhere.
std::string lone_tokenizer(const io::OpenFolder& folder) {
  if (folder.has(pieces_file)) return pieces_file;
  const std::string beside = std::string("tokenizer/") + pieces_file;
  return folder.has(beside) ? beside : "";
}

std::string title_of(const codecs::EncoderInfo& info) {
  if (info.kind == "t5") return "T5 encoder (t5)";
  return info.kind == "cogvideox" ? "AutoencoderKLCogVideoX (cogvideox)" : "AutoencoderKL (autoencoder-kl)";
}

std::string size_text(const codecs::EncoderMemory& m) {
  return detail::concat(m.frames > 0 ? detail::concat(m.frames, " frames of ") : std::string(), m.width, "x",
                        m.height);
}

std::string latents_text(const codecs::EncoderInfo& info) {
  const codecs::EncoderMemory& m = *info.memory;
  const std::string latent =
      detail::concat(info.channels, " channels of ", m.width / info.factor, "x", m.height / info.factor);
  return detail::concat(size_text(m), " become ",
                        m.frames > 0 ? detail::concat(m.frames / info.time_factor, " latent frames, ") : "",
                        latent, " (factor ", info.factor,
                        m.frames > 0 ? detail::concat(", in time ", info.time_factor) : std::string(), ")");
}

std::string weights_text(const codecs::EncoderInfo& info) {
  const std::size_t files = info.files.size();
  return detail::concat(files == 1 ? shown(info.files.front()) : detail::concat(files, " files"), ", ",
                        info.tensors, " tensors, ", grouped(info.parameters), " parameters, ",
                        bytes_text(static_cast<double>(info.bytes)), ", ", joined(info.dtypes));
}

std::string pieces_text(const codecs::EncoderInfo& info) {
  return detail::concat(grouped(info.vocabulary), " rows; ",
                        info.pieces ? detail::concat(grouped(*info.pieces), " pieces in spiece.model")
                                    : std::string("no spiece.model: no prompts, only tokens"));
}

void print_encoder(const codecs::EncoderInfo& info, const std::string& hash) {
  const auto line = [](std::string name, const std::string& text) {
    name.resize(14, ' ');
    print("  " + name + wrap(text, 16, 16));
  };
  print(bold(title_of(info), 1) + "  " + shown(info.where));
  line("network", info.network);
  if (info.memory) {
    const codecs::EncoderMemory& m = *info.memory;
    line("latents", latents_text(info));
    line("scale, shift",
         detail::concat(info.scale, ", ", info.shift, ": networks see (latent - shift) * scale"));
    line("memory", detail::concat("about ", bytes_text(static_cast<double>(m.encode)), " to encode ",
                                  size_text(m), ", ", bytes_text(static_cast<double>(m.decode)),
                                  " to decode, in fp32, beyond weights of ",
                                  bytes_text(static_cast<double>(4 * info.parameters))));
  } else {
    line("text", detail::concat(info.width, " wide"));
    line("vocabulary", pieces_text(info));
  }
  line("weights", weights_text(info));
  line("sha256", hash);
}

JsonObject encoder_json(const codecs::EncoderInfo& info, const std::string& hash) {
  JsonObject object;
  object.add("kind", info.kind)
      .add("folder", info.where)
      .add("network", info.network)
      .add("tensors", info.tensors)
      .add("parameters", info.parameters)
      .add("bytes", info.bytes)
      .add("dtypes", info.dtypes)
      .add("files", info.files);
  if (info.memory) {
    const codecs::EncoderMemory& m = *info.memory;
    object.add("channels", info.channels)
        .add("factor", info.factor)
        .add("time_factor", info.time_factor)
        .add("scale", info.scale)
        .add("shift", info.shift)
        .add("memory", JsonObject()
                           .add("size", std::vector{m.width, m.height})
                           .add("frames", m.frames)
                           .add("encode", m.encode)
                           .add("decode", m.decode));
  } else {
    object.add("width", info.width).add("vocabulary", info.vocabulary);
    if (info.pieces) object.add("pieces", *info.pieces);
  }
  return object.add("sha256", hash);
}

std::string tokenizer_text(const io::OpenFolder& folder, const std::string& file) {
  const io::SentencePieces pieces(io::read_sentence_pieces(folder, file), folder.path_of(file));
  check(pieces.size() > 1 && pieces.piece(1).type == io::SentencePiece::control, folder.path_of(file),
        ": expected </s>, a control piece, as piece 1");
  return detail::concat(grouped(pieces.size()), " pieces, sha256 ", pieces.sha256());
}

std::string checked_text(const io::OpenFolder& folder, const std::string& within) {
  const codecs::EncoderInfo info = codecs::describe_encoder(folder, within);
  const std::int64_t values = codecs::check_finite_encoder(folder, within);
  return detail::concat(info.kind, ", ", info.tensors, " tensors, all there, ", joined(info.dtypes), ", ",
                        grouped(values), " finite values");
}

// A pipeline has it beside text_encoder/, in tokenizer/, which is not in the folder that was asked about.
std::optional<std::int64_t> pieces_beside(const io::OpenFolder& folder) {
  std::error_code error;
  const fs::path beside = fs::canonical(folder.path(), error).parent_path() / "tokenizer";
  if (error || !fs::exists(beside / pieces_file, error)) return std::nullopt;
  const io::OpenFolder opened(beside, "doctor");
  tokenizer_text(opened, pieces_file);
  return io::SentencePieces(io::read_sentence_pieces(opened, pieces_file)).size();
}

Check tokenizer_check(const io::OpenFolder& folder, const std::string& within) {
  return guarded("tokenizer", "put spiece.model of the same encoder into the folder", [&] {
    const codecs::EncoderInfo info = codecs::describe_encoder(folder, within);
    const std::optional<std::int64_t> pieces = info.pieces ? info.pieces : pieces_beside(folder);
    check(pieces.has_value(), "no spiece.model in ", folder.path().string(),
          " nor in a tokenizer/ within or beside it: prompts cannot be encoded");
    check(*pieces <= info.vocabulary, "expected at most ", info.vocabulary, " pieces, as vocab_size of ",
          info.where, "/config.json says, got ", *pieces);
    return detail::concat(grouped(*pieces), " pieces in spiece.model", info.pieces ? "" : " of ../tokenizer",
                          ", ", grouped(info.vocabulary), " rows in the table");
  });
}

}  // namespace

bool is_encoder_folder(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return false;
  const io::OpenFolder folder(path, "info");
  if (!folder.has("config.json"))
    return !codecs::encoders_in(folder).empty() || !lone_tokenizer(folder).empty();
  try {
    return codecs::encoders_in(folder) == std::vector<std::string>{""};
  } catch (const Error&) {  // of a file that is no JSON, which the model's reader tells best
    return false;
  }
}

void print_encoders(const fs::path& path) {
  const io::OpenFolder folder(path, "info");
  for (const std::string& within : codecs::encoders_in(folder)) {
    print("");
    print_encoder(codecs::describe_encoder(folder, within), codecs::encoder_hash(folder, within));
  }
}

std::vector<JsonObject> encoders_json(const fs::path& path) {
  const io::OpenFolder folder(path, "info");
  std::vector<JsonObject> objects;
  for (const std::string& within : codecs::encoders_in(folder))
    objects.push_back(
        encoder_json(codecs::describe_encoder(folder, within), codecs::encoder_hash(folder, within)));
  return objects;
}

int encoder_folder_info(const fs::path& path, bool json) {
  const io::OpenFolder folder(path, "info");
  const std::vector<std::string> found = codecs::encoders_in(folder);
  const std::string tokenizer = found.empty() ? lone_tokenizer(folder) : "";
  if (json) {
    JsonObject object;
    object.add("encoders", encoders_json(path));
    if (!tokenizer.empty()) object.add("tokenizer", tokenizer_text(folder, tokenizer));
    print(object.text());
    return Exit::ok;
  }
  for (const std::string& within : found)
    print_encoder(codecs::describe_encoder(folder, within), codecs::encoder_hash(folder, within));
  if (!tokenizer.empty()) {
    print(bold("SentencePiece vocabulary", 1) + "  " + shown(folder.path_of(tokenizer)));
    print("  pieces        " + wrap(tokenizer_text(folder, tokenizer), 16, 16));
  }
  return Exit::ok;
}

std::vector<Check> check_encoders(const fs::path& path) {
  const io::OpenFolder folder(path, "doctor");
  std::vector<Check> checks;
  const std::vector<std::string> found = codecs::encoders_in(folder);
  for (const std::string& within : found) {
    checks.push_back(guarded(within.empty() ? "encoder" : within, "fetch the folder again, or convert it",
                             [&] { return checked_text(folder, within); }));
    if (checks.back().state == State::problem) continue;
    if (codecs::describe_encoder(folder, within).kind == "t5")
      checks.push_back(tokenizer_check(folder, within));
  }
  if (const std::string file = lone_tokenizer(folder); found.empty() && !file.empty())
    checks.push_back(
        guarded("tokenizer", "fetch spiece.model again", [&] { return tokenizer_text(folder, file); }));
  return checks;
}

}  // namespace pom::cli
