// What made an image or clip, in its file: `parameters` in the words of A1111's interface, `pom` as JSON.
//
//   parameters   star
//                Steps: 20, Sampler: Heun, CFG scale: 2, Seed: 7, Size: 64x64, Model hash: 0123456789,
//                Model: shapes64, Version: libpom 0.1.0           (one line)
//   pom          {"format":1,"request":{…},"model":{"name":"shapes64","sha256":"…"},"version":"0.1.0"}
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "pom/generate/request.h"
#include "pom/io/png.h"

namespace pom::generate {

struct Origin {
  Request request;  // of one image or clip, complete; files it begins with have names, not paths
  std::string model, model_hash;  // name, and SHA-256 of model.safetensors in hexadecimal digits
  std::string text_hash = {};     // the same of its text encoder, where it has one
  std::string codec_hash = {};    // and of its autoencoder
  std::string init_hash = {}, continue_hash = {};  // of the files that the request begins with
  // The file of latents that took the place of the seed's noise, its hash, and which of its rows; empty, and
  // 0, where the seed made it.
  std::string noise_file = {}, noise_hash = {};
  std::int64_t noise_row = 0;
  // Items of the batch that it was made in, where the bits depend on that number (on a GPU); 0: they do not,
  // or nobody counted.
  std::int64_t batch = 0;
  std::string version = {};  // of libpom
};

// The two texts of an image or clip made by `request`, which must be complete.
std::vector<io::TextEntry> metadata_of(const Origin& origin);

// Throws pom::Error that says what is missing where the text is not that of a file made here; `source` begins
// the messages.
Origin origin_of(const std::vector<io::TextEntry>& text, std::string_view source);

// Files that a request begins with by their names alone: a file says nothing of this machine.
void forget_folders(Request& request);

// What a file says must not make anybody write another: throws pom::Error where its request asks for that.
void check_no_writing(const Request& request, std::string_view where);

// A request as JSON in one line, the fields that are given; and from an object of JSON, where every key must
// be a field. `source` begins the messages.
std::string request_json(const Request& request);
// Of a request that was written before there was a shift, or where it was 1: that of even steps.
void fill_shift(Request& request);
Request request_from_json(std::string_view json, std::string_view source);

}  // namespace pom::generate
