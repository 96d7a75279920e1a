// Reference tokenizer for golden vectors: llama.cpp's own tokenize and its own regex split, over many texts.
//
// Link against a llama.cpp build tree (see make_text_golden.py). All input comes from stdin as records of
// a little-endian uint32 length and that many bytes.
//   llama_reference tokenize MODEL.gguf   every record is a text; per text four lines of ids, in the order
//                                         (add_special, parse_special) = 00, 01, 10, 11
//   llama_reference split N               the first N records are regexes, the others texts; per text one
//                                         line with the length of each piece in code points
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "llama.h"
#include "unicode.h"

static bool read_record(std::string & out) {
    uint32_t n = 0;
    if (fread(&n, 4, 1, stdin) != 1) return false;
    out.resize(n);
    return n == 0 || fread(&out[0], 1, n, stdin) == n;
}

static int tokenize(const char * path) {
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_backend_init();
    llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    llama_model * model = llama_model_load_from_file(path, params);
    if (!model) return 2;
    const llama_vocab * vocab = llama_model_get_vocab(model);
    std::string text;
    while (read_record(text)) {
        for (int flags = 0; flags < 4; ++flags) {
            std::vector<llama_token> ids(text.size() + 8);
            const int n = llama_tokenize(vocab, text.data(), (int) text.size(), ids.data(), (int) ids.size(),
                                         flags & 2, flags & 1);
            for (int i = 0; i < n; ++i) printf(i ? " %d" : "%d", ids[i]);
            printf("\n");
        }
    }
    return 0;
}

static int split(int num_regexes) {
    std::vector<std::string> regexes(num_regexes);
    for (auto & regex : regexes) read_record(regex);
    std::string text;
    while (read_record(text)) {
        const char * gap = "";
        for (const auto & piece : unicode_regex_split(text, regexes, false)) {
            printf("%s%zu", gap, unicode_cpts_from_utf8(piece).size());
            gap = " ";
        }
        printf("\n");
    }
    return 0;
}

int main(int argc, char ** argv) {
    if (argc == 3 && !strcmp(argv[1], "tokenize")) return tokenize(argv[2]);
    if (argc == 3 && !strcmp(argv[1], "split")) return split(atoi(argv[2]));
    fprintf(stderr, "usage: llama_reference tokenize MODEL.gguf | split N\n");
    return 1;
}
