// Private to the room: the words that a text encoder gets a piece for, from the captions that it will read.
#pragma once

#include "pom/codecs/word_pieces.h"
#include "pom/train/recipe.h"

namespace pom::train {

// Of the training captions of sprites, or of all captions of a folder of clips.
codecs::WordPieces vocabulary_of(const Recipe& recipe);

}  // namespace pom::train
