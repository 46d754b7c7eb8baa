// Tests of the parser of forms.
#include "pom/net/multipart.h"

#include <gtest/gtest.h>

#include "pom/base/error.h"

namespace pom::net {
namespace {

HttpRequest form(std::string body, std::string type = "multipart/form-data; boundary=XX") {
  HttpRequest request;
  request.headers.add("Content-Type", std::move(type));
  request.body = std::move(body);
  return request;
}

std::string part(std::string_view disposition, std::string_view data, std::string_view more = "") {
  return "--XX\r\nContent-Disposition: " + std::string(disposition) + "\r\n" + std::string(more) + "\r\n" +
         std::string(data) + "\r\n";
}

std::string field(std::string_view name, std::string_view data) {
  return part("form-data; name=\"" + std::string(name) + "\"", data);
}

std::string refusal(const HttpRequest& request, const FormLimits& limits = {}) {
  try {
    parse_form(request, limits);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ParseForm, FieldsAndAFile) {
  const std::string picture("\x89PNG\r\n\x1a\n--X\r\n--XY\0", 19);
  const HttpRequest request = form(field("prompt", "a red circle") + field("empty", "") +
                                   part("form-data; name=\"image\"; filename=\"a \\\"b\\\".png\"", picture,
                                        "Content-Type: image/png\r\n") +
                                   "--XX--\r\n");
  const Form parsed = parse_form(request);
  ASSERT_EQ(parsed.parts().size(), 3u);
  EXPECT_EQ(parsed.find("prompt")->data, "a red circle");
  EXPECT_EQ(parsed.find("prompt")->filename, std::nullopt);
  EXPECT_EQ(parsed.find("empty")->data, "");
  ASSERT_NE(parsed.file(), nullptr);
  EXPECT_EQ(parsed.file()->name, "image");
  EXPECT_EQ(parsed.file()->filename, "a \"b\".png");
  EXPECT_EQ(parsed.file()->type, "image/png");
  EXPECT_EQ(parsed.file()->data, picture);
  EXPECT_EQ(parsed.find("none"), nullptr);
}

TEST(ParseForm, ManyWaysToSayTheSame) {
  const HttpRequest quoted =
      form(field("a", "1") + "--XX--", "Multipart/Form-Data; charset=utf-8; boundary=\"XX\"");
  EXPECT_EQ(parse_form(quoted).find("a")->data, "1");
  const HttpRequest token = form(part("FORM-DATA;name=a ; other=b", "1") + "--XX--\r\n");
  EXPECT_EQ(parse_form(token).find("a")->data, "1");
  const HttpRequest star =
      form(part("form-data; name=\"a\"; filename=\"x\"; filename*=UTF-8''y", "1") + "--XX--");
  EXPECT_EQ(parse_form(star).file()->filename, "x");
  EXPECT_EQ(parse_form(form("--XX--\r\n")).file(), nullptr);
  const HttpRequest binary =
      form(part("form-data; name=\"a\"", "1", "Content-Transfer-Encoding: binary\r\n") + "--XX--");
  EXPECT_EQ(parse_form(binary).parts().size(), 1u);
}

TEST(ParseForm, WhatIsNoForm) {
  EXPECT_EQ(refusal(form("", "application/json")),
            "form: expected multipart/form-data, got \"application/json\"");
  for (const char* type : {"multipart/form-data", "multipart/form-data; boundary=",
                           "multipart/form-data; boundary=\"a b\"", "multipart/form-data; boundary=\"\""})
    EXPECT_EQ(refusal(form("--XX--", type)), "form: boundary: expected 1 to 70 printable characters") << type;
  EXPECT_EQ(refusal(form("--XX--", "multipart/form-data; boundary=" + std::string(71, 'a'))),
            "form: boundary: expected 1 to 70 printable characters");
  EXPECT_EQ(refusal(form("--XX--", "multipart/form-data; boundary=a; boundary=b")),
            "form: boundary: expected one, got two");
  EXPECT_EQ(refusal(form("--XX--", "multipart/form-data; boundary=\"a")),
            "form: expected a quote at the end of a value, got none");
  EXPECT_EQ(refusal(form("--XX--", "multipart/form-data; boundary")),
            "form: expected name=value, got \"boundary\"");
}

TEST(ParseForm, Malformations) {
  const std::string rest = "--XX--";
  EXPECT_EQ(refusal(form("")), "form: expected the boundary first");
  EXPECT_EQ(refusal(form("preamble\r\n" + field("a", "1") + rest)), "form: expected the boundary first");
  EXPECT_EQ(refusal(form("--XXx" + rest)), "form: expected the end of a line after the boundary");
  EXPECT_EQ(refusal(form("--XX-")), "form: expected the end of a line after the boundary");
  EXPECT_EQ(refusal(form("--XX\r\n")), "form: expected the headers of a part, of at most 2048 bytes");
  EXPECT_EQ(refusal(form("--XX\r\n\r\n1\r\n" + rest)),
            "form: expected a part with Content-Disposition, got one without");
  EXPECT_EQ(refusal(form(part("form-data", "1") + rest)),
            "form: expected a part with a name, got one without");
  EXPECT_EQ(refusal(form(field("", "1") + rest)), "form: expected a part with a name, got one without");
  EXPECT_EQ(refusal(form(part("attachment; name=\"a\"", "1") + rest)),
            "form: Content-Disposition: expected form-data");
  EXPECT_EQ(refusal(form(part("form-data; name=\"a", "1") + rest)),
            "form: expected a quote at the end of a value, got none");
  EXPECT_EQ(refusal(form(part("form-data; name=a; name=b", "1") + rest)),
            "form: name: expected one, got two");
  EXPECT_EQ(refusal(form(part("form-data; name=\"\xff\"", "1") + rest)),
            "form: name: expected at most 256 bytes of UTF-8");
  EXPECT_EQ(refusal(form(part("form-data; name=a", "1", "No colon\r\n") + rest)),
            "form: headers of a part: expected \"Name: value\", got \"No colon\"");
  EXPECT_EQ(
      refusal(form(part("form-data; name=a", "1", "Content-Disposition: form-data; name=b\r\n") + rest)),
      "form: Content-Disposition: expected one, got two");
  EXPECT_EQ(refusal(form(part("form-data; name=a", "1", "Content-Transfer-Encoding: base64\r\n") + rest)),
            "form: Content-Transfer-Encoding: expected binary, got \"base64\"");
  EXPECT_EQ(refusal(form(field("a", "1"))),
            "form: expected the boundary after a part, got the end of the body");
  EXPECT_EQ(refusal(form(field("a", "1") + "--XX--\r\nmore")),
            "form: expected the end of the body after the last boundary");
}

TEST(ParseForm, Limits) {
  const FormLimits limits{.parts = 2, .field_bytes = 3, .file_bytes = 5};
  const std::string rest = "--XX--";
  const auto file = [](std::string_view data) { return part("form-data; name=f; filename=x", data); };
  EXPECT_EQ(refusal(form(field("a", "123") + rest), limits), "");
  EXPECT_EQ(refusal(form(field("a", "1234") + rest), limits), "form: \"a\": expected at most 3 bytes, got 4");
  EXPECT_EQ(refusal(form(file("12345") + rest), limits), "");
  EXPECT_EQ(refusal(form(file("123456") + rest), limits), "form: \"f\": expected at most 5 bytes, got 6");
  EXPECT_EQ(refusal(form(field("a", "1") + field("b", "1") + rest), limits), "");
  EXPECT_EQ(refusal(form(field("a", "1") + field("b", "1") + field("c", "1") + rest), limits),
            "form: expected at most 2 parts");
  EXPECT_EQ(refusal(form(field("a", "1") + field("a", "1") + rest)), "form: \"a\": expected one, got two");
  EXPECT_EQ(refusal(form(file("1") + part("form-data; name=g; filename=y", "2") + rest)),
            "form: expected one file, got two");
  EXPECT_EQ(refusal(form(part("form-data; name=" + std::string(256, 'a'), "") + rest)), "");
  EXPECT_EQ(refusal(form(part("form-data; name=" + std::string(257, 'a'), "") + rest)),
            "form: name: expected at most 256 bytes of UTF-8");
  EXPECT_EQ(refusal(form(part("form-data; name=a", "1", "X: " + std::string(2048, 'x') + "\r\n") + rest)),
            "form: expected the headers of a part, of at most 2048 bytes");
}

TEST(IsForm, ByItsType) {
  EXPECT_TRUE(is_form(form("", "multipart/form-data; boundary=a")));
  EXPECT_TRUE(is_form(form("", "MULTIPART/form-data")));
  EXPECT_FALSE(is_form(form("", "multipart/form-dataa; boundary=a")));
  EXPECT_FALSE(is_form(form("", "application/json; a=multipart/form-data")));
  EXPECT_FALSE(is_form({}));
}

}  // namespace
}  // namespace pom::net
