// Private to the room: where the objects of a scene are, so that every relation that is said can be seen, and
// none that is not said.
#pragma once

#include "pom/data/scene_numbers.h"
#include "pom/data/scenes.h"

namespace pom::data {

// Makes the objects of a scene whose groups and relations are chosen. False where no place was found for one
// of them: then there may be none.
bool place_objects(Scene& scene, SceneNumbers& numbers);

}  // namespace pom::data
