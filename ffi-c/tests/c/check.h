/* What the C tests share. */
#ifndef CHECK_H
#define CHECK_H

#include <pgfollow.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                          \
    do {                                                                          \
        if (!(condition)) {                                                       \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                              \
        }                                                                         \
    } while (0)

/* The call succeeds; else its error is printed. */
#define WORKS(call)                                                                       \
    do {                                                                                  \
        pgf_error *why_ = NULL;                                                           \
        pgf_error **error = &why_;                                                        \
        pgf_status status_ = (call);                                                      \
        if (status_ != PGF_OK) {                                                          \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, pgf_error_message(why_)); \
            exit(1);                                                                      \
        }                                                                                 \
        (void)error;                                                                      \
    } while (0)

/* The call fails with that status, and the error's message contains the words. */
#define FAILS(expected, words, call)                                                      \
    do {                                                                                  \
        pgf_error *why_ = NULL;                                                           \
        pgf_error **error = &why_;                                                        \
        pgf_status status_ = (call);                                                      \
        if (status_ != (expected) || !why_ || !strstr(pgf_error_message(why_), words)) {  \
            fprintf(stderr, "%s:%d: %s: %d, %s\n", __FILE__, __LINE__, #call, (int)status_, \
                    why_ ? pgf_error_message(why_) : "no error");                         \
            exit(1);                                                                      \
        }                                                                                 \
        CHECK(pgf_error_code(why_) == status_);                                           \
        CHECK(pgf_error_free(why_) == PGF_OK);                                            \
        (void)error;                                                                      \
    } while (0)

static inline pgf_connector *connector_of(const char *conninfo)
{
    pgf_connector *connector = NULL;
    WORKS(pgf_connector_new(conninfo, strlen(conninfo), &connector, error));
    CHECK(connector != NULL);
    return connector;
}

#endif
