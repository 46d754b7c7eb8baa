// Private to the room: the kinds of writers that open_clip chooses from.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "pom/io/clip.h"

namespace pom::io::detail {

std::unique_ptr<ClipWriter> open_gif(const std::filesystem::path& path, const ClipOptions& options);
std::unique_ptr<ClipWriter> open_y4m_file(const std::filesystem::path& path, const ClipOptions& options);
std::unique_ptr<ClipWriter> open_frame_folder(const std::filesystem::path& path, const ClipOptions& options);

// .mp4 and .webm, which FFmpeg writes: "mp4" or "webm".
std::unique_ptr<ClipWriter> open_encoded(const std::filesystem::path& path, const std::string& container,
                                         const ClipOptions& options);
// An .mp4 without a file, which grows.
std::unique_ptr<ClipWriter> open_fragments(const ClipOptions& options, std::function<void(ClipPiece&&)> take);
// That this build has an encoder for it; errors begin with `operation`.
void check_encoder(const std::string& operation, const std::string& container);

// "libx264, libvpx-vp9"; defined where this build has FFmpeg.
std::string encoder_names();

// Tags of .mp4 and .webm: the text of the first entry, which players show, and all entries (text_comment.h).
inline constexpr const char *shown_tag = "comment", *whole_tag = "synopsis";

}  // namespace pom::io::detail
