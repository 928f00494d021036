/* The classify vectors through the ABI, and structures of other versions of the header. */
#include "check.h"

struct expected {
    /* -1: the vector doesn't say. */
    int error_class, retry_unit, discard, recheck_siblings, next_host, backoff, shown_to_caller;
};

static int wrong = 0;

static void judge(const char *id, pgf_failure failure, struct expected want)
{
    pgf_verdict got;
    memset(&got, 0, sizeof got);
    got.size = sizeof got;
    failure.size = sizeof failure;
    WORKS(pgf_classify(&failure, &got, error));
#define SAME(field)                                                                       \
    if (want.field >= 0 && want.field != got.field) {                                     \
        fprintf(stderr, "%s: " #field " is %d, not %d\n", id, (int)got.field, want.field); \
        wrong++;                                                                          \
    }
    SAME(error_class)
    SAME(retry_unit)
    SAME(discard)
    SAME(recheck_siblings)
    SAME(next_host)
    SAME(backoff)
    SAME(shown_to_caller)
}

static void cases(void)
{
    pgf_failure f;
    struct expected e;
#include "classify_cases.h"
}

static void another_version_of_the_structures_is_no_overrun(void)
{
    struct {
        pgf_failure known;
        int32_t later, more;
    } longer;
    struct {
        pgf_verdict verdict;
        int32_t behind;
    } place;
    memset(&longer, 0, sizeof longer);
    longer.known.phase = PGF_PHASE_COMMIT;
    longer.known.signal = PGF_SIGNAL_IO;
    longer.known.size = sizeof longer;
    memset(&place, 0x55, sizeof place);
    place.verdict.size = sizeof place.verdict;
    WORKS(pgf_classify(&longer.known, &place.verdict, error));
    CHECK(place.verdict.error_class == PGF_CLASS_UNKNOWN_OUTCOME && place.behind == 0x55555555);
    longer.later = 1;
    FAILS(PGF_UNSUPPORTED_OPTION, "too old", pgf_classify(&longer.known, &place.verdict, error));
    longer.known.size = 0;
    FAILS(PGF_WRONG_CALL, "size", pgf_classify(&longer.known, &place.verdict, error));

    /* An older header's verdict: nothing is written behind its end. */
    longer.known.size = sizeof longer.known;
    memset(&place, 0x55, sizeof place);
    place.verdict.size = offsetof(pgf_verdict, next_host);
    WORKS(pgf_classify(&longer.known, &place.verdict, error));
    CHECK(place.verdict.recheck_siblings == 1 && place.verdict.next_host == 0x55555555);
}

static void a_misspelt_fact_is_refused_instead_of_guessed(void)
{
    pgf_failure f;
    pgf_verdict v;
    memset(&f, 0, sizeof f);
    f.size = sizeof f;
    v.size = sizeof v;
    FAILS(PGF_WRONG_CALL, "phase is not set", pgf_classify(&f, &v, error));
    f.phase = 99;
    FAILS(PGF_WRONG_CALL, "phase is 99", pgf_classify(&f, &v, error));
    f.phase = PGF_PHASE_STATEMENT;
    FAILS(PGF_WRONG_CALL, "signal is not set", pgf_classify(&f, &v, error));
    f.signal = PGF_SIGNAL_SQLSTATE;
    FAILS(PGF_WRONG_CALL, "sqlstate is not set", pgf_classify(&f, &v, error));
    f.sqlstate = "4000";
    f.sqlstate_len = 4;
    FAILS(PGF_WRONG_CALL, "4000", pgf_classify(&f, &v, error));
    f.sqlstate_len = 5;
    f.sqlstate = "40001";
    f.severity = "fatl";
    f.severity_len = 4;
    FAILS(PGF_WRONG_CALL, "fatl", pgf_classify(&f, &v, error));
    f.severity_len = 0;
    f.in_transaction = 3;
    FAILS(PGF_WRONG_CALL, "in_transaction is 3", pgf_classify(&f, &v, error));
}

int main(void)
{
    cases();
    another_version_of_the_structures_is_no_overrun();
    a_misspelt_fact_is_refused_instead_of_guessed();
    CHECK(wrong == 0);
    return 0;
}
