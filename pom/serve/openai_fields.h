// What OpenAI's faces share: other names of our fields, sizes in one word, and forms in place of JSON.
#pragma once

#include <string>

#include "pom/net/http_message.h"
#include "pom/serve/json.h"

namespace pom::serve {

// num_inference_steps, guidance_scale and sampler_name as other servers call ours; both names are an error.
void rename_aliases(Json& object);
// null is the same as leaving a field out.
void drop_nulls(Json& object);
// Takes "size", "WxH" or "auto", and says it as width and height.
void take_size(Json& object);

// The fields of a form (multipart/form-data) as JSON would have them: numbers where our fields are numbers. A
// file is an error that names it. Throws ApiError.
Json form_object(const net::HttpRequest& request);

}  // namespace pom::serve
