// The flags of `pom sample`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cli/common_fields.h"
#include "pom/generate/device.h"
#include "pom/generate/request.h"

namespace pom::cli {

struct SampleOptions {
  std::string model, device = "cpu", output, size, memory_limit, init_latents, save_latents;
  std::string prompts, vbench;
  generate::Request request;
  std::int64_t preview = 0, batch = 0, threads = 0, gpus = 0;
  bool grid = false, yes = false, dry_run = false, json = false, quiet = false;
  bool split = false;

  template <class Visit>
  void fields(Visit&& visit) {
    constexpr std::string_view what = "What to make", where = "Where it goes", work = "How to work";
    visit(Field{.name = "model",
                .help = "model folder (config.json, model.safetensors), or its name in $POM_MODELS, "
                        "assets/ or models/",
                .value = "DIR",
                .group = "Model"},
          model);
    request.fields([&](Field field, auto& value) {
      if (field.name == "count")
        field.help = "images or clips of each class or prompt (default: 1; with --vbench 5)";
      visit(field, value);
      if (field.name == "prompt")
        visit(Field{.name = "prompts",
                    .help = "a file with a prompt in each line, in place of --prompt",
                    .value = "FILE",
                    .group = what},
              prompts);
    });
    visit(Field{.name = "size",
                .help = "width and height in pixels, 64x48 or 64 (default: the model's own)",
                .value = "WxH",
                .group = what},
          size);
    visit(
        Field{
            .name = "output",
            .help =
                "image (cat.png, cat.jpg), pattern (cat_%03d.png counts from 0; {class}, {prompt} "
                "and {seed} are the item's own) or folder (cats/ gets MODEL_%03d.png); "
                "default: out/{class}_{seed}.png; all images in one samples.npz (arr_0, uint8 (N, H, W, 3), "
                "and classes in arr_1), for programs that score them. A clip: cat.mp4, .webm, .gif, .y4m, a "
                "folder of "
                "frames (cat/), or - for raw y4m on stdout",
            .value = "FILE",
            .group = where},
        output);
    visit(
        Field{.name = "vbench",
              .help = "folder for clips as VBench takes them, PROMPT-0.mp4 to PROMPT-4.mp4, in place of -o; "
                      "those that are there are kept; seeds are listed beside it, in DIR.jsonl",
              .value = "DIR",
              .group = where},
        vbench);
    visit(Field{.name = "grid",
                .help = "one labelled sheet of all images; of clips, one clip of them side by side",
                .group = where},
          grid);
    visit(Field{.name = "preview",
                .help = "also write the predicted image every N steps, as NAME_preview_003.png next to "
                        "the output",
                .value = "N",
                .group = where,
                .least = 1,
                .most = 10000},
          preview);
    visit(yes_field(where), yes);
    visit(Field{.name = "json",
                .help = "the result as one JSON object: files, seeds, classes or prompts, seconds, model",
                .group = where},
          json);
    visit(
        Field{
            .name = "quiet", .help = "no progress, no notes; a random seed is still printed", .group = where},
        quiet);
    visit(Field{.name = "save_latents",
                .help = "also write the latents before decoding: safetensors, \"latents\", one row per item",
                .value = "FILE",
                .group = where},
          save_latents);
    visit(Field{.name = "init_latents",
                .help = "noise to start from instead of the seed's: a file like that of --save-latents",
                .value = "FILE",
                .group = work},
          init_latents);
    visit(Field{.name = "dry_run",
                .help = "only forecast time and memory; exit 1 if it does not fit",
                .group = work},
          dry_run);
    visit(generate::device_field(work), device);
    visit(Field{.name = "batch",
                .help = "images or clips at a time (default: what memory and speed suggest)",
                .value = "N",
                .group = work,
                .least = 1,
                .most = 65536},
          batch);
    visit(Field{.name = "memory_limit",
                .help = "memory limit of the whole program, e.g. 4G or 512M",
                .value = "SIZE",
                .group = work},
          memory_limit);
    visit(Field{.name = "split",
                .help = "with several GPUs all of them work on each image or clip, for one that is large "
                        "(default: each makes items of its own; where there are fewer items than GPUs, as "
                        "with --split)",
                .group = work},
          split);
    visit(gpus_field(work), gpus);
    visit(threads_field(work), threads);
  }
};

}  // namespace pom::cli
