use proptest::prelude::*;

use super::*;

/// In doubt about a text that begins with SELECT.
const DOUBT: Effects = Effects { calls: false, ..Effects::DOUBT };

fn read(text: &str, conforming: bool) -> Effects {
    effects(text.as_bytes(), conforming)
}

fn commits(text: &str) -> bool {
    read(text, true).commits
}

#[test]
fn a_statement_that_may_commit_is_never_taken_for_an_ordinary_one() {
    for text in [
        "COMMIT",
        "commit",
        "  /* x */ -- y\n CoMmIt ;",
        "END",
        "end transaction",
        "PREPARE TRANSACTION 'x'",
        "COMMIT PREPARED 'x'",
        "ROLLBACK PREPARED 'x'",
        "CALL p()",
        "DO $$ BEGIN COMMIT; END $$",
        "SELECT 1; COMMIT",
        "SELECT ';' ;commit",
        "SELECT 'it''s';COMMIT",
        "SELECT E'it\\'s; SELECT';COMMIT",
        "SELECT $x$ $y$ ; $x$;COMMIT",
        "SELECT $1;COMMIT",
        "SELECT a$b;COMMIT--$b",
        "SELECT \"a\"\"b;\";COMMIT",
        "/* /* */ ; SELECT */ COMMIT",
        "SELECT 1 /* */;COMMIT",
        "SELECT 1-1;COMMIT",
        "SELECT 4/2;COMMIT",
        "--\rCOMMIT",
        "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; END",
    ] {
        assert!(commits(text), "{text}");
    }
}

#[test]
fn words_inside_quotes_and_comments_or_later_in_a_statement_raise_no_alarm() {
    for text in [
        "SELECT 1",
        "INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING",
        "SELECT CASE WHEN a THEN 1 END FROM t",
        "SELECT ';COMMIT'",
        "SELECT E'\\';COMMIT'",
        "SELECT $$;COMMIT$$",
        "SELECT $a$;COMMIT$$;COMMIT$a$",
        "SELECT \";COMMIT\"",
        "SELECT 1 -- ;COMMIT",
        "SELECT 1 /* ;COMMIT /* */ ;COMMIT */",
        "SELECT 'a\\d+'",
        "committed",
        "",
        ";;",
    ] {
        assert!(!commits(text), "{text}");
    }
    assert_eq!(read("INSERT INTO t VALUES (1)", true), Effects::PLAIN);
}

#[test]
fn a_backslash_counts_as_doubt_where_its_meaning_is_not_known() {
    // With standard_conforming_strings=off this text commits.
    let text = "SELECT '\\'';COMMIT;--'";
    assert!(!read(text, true).commits);
    assert_eq!(read(text, false), DOUBT);
    // The second half is a continuation, so its backslash escapes.
    assert_eq!(read("SELECT E'a'\n'\\'';COMMIT;--'", true), DOUBT);
}

#[test]
fn a_call_is_known_for_one_even_in_a_doubtful_text() {
    for yes in ["CALL p()", "do $$ begin end $$", "SELECT 1; call p()", "CALL p('\\')"] {
        assert!(read(yes, false).calls, "{yes}");
    }
    for no in
        ["COMMIT", "SELECT '\\'", "INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING", "SELECT 'call p()'"]
    {
        assert!(!read(no, false).calls, "{no}");
    }
}

#[test]
fn an_open_quote_or_comment_is_doubt() {
    for text in ["SELECT 'a", "SELECT \"a", "SELECT $$a", "SELECT /* a", "SELECT $a", "SELECT E'\\"] {
        assert_eq!(read(text, true), DOUBT, "{text}");
    }
    let tag = "x".repeat(80);
    assert_eq!(read(&format!("SELECT ${tag}$;COMMIT${tag}$"), true), DOUBT);
}

#[test]
fn only_statements_without_lasting_effect_are_said_not_to_work() {
    for text in
        ["BEGIN", "START TRANSACTION", "ROLLBACK", "ABORT", "SAVEPOINT a", "RELEASE a", "SHOW x", "SET x=1"]
    {
        assert!(!read(text, true).works, "{text}");
    }
    for text in
        ["SELECT f()", "NOTIFY x", "ROLLBACK PREPARED 'x'", "BEGIN; INSERT INTO t VALUES (1)", "FETCH c"]
    {
        assert!(read(text, true).works, "{text}");
    }
}

#[test]
fn work_after_the_end_of_a_block_is_seen() {
    assert!(read("ROLLBACK; INSERT INTO t VALUES (1)", true).goes_on);
    assert!(read("COMMIT; INSERT INTO t VALUES (1)", true).goes_on);
    assert!(!read("INSERT INTO t VALUES (1); COMMIT", true).goes_on);
    assert!(!read("ROLLBACK; SAVEPOINT x", true).goes_on);
}

#[test]
fn read_only_is_believed_only_where_the_block_cannot_be_writable() {
    let mode = |t| read(t, true).read_only;
    assert_eq!(mode("BEGIN READ ONLY"), Some(true));
    assert_eq!(mode("START TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY, DEFERRABLE"), Some(true));
    assert_eq!(mode("START TRANSACTION ISOLATION LEVEL SERIALIZABLE READ only DEFERRABLE"), Some(true));
    assert_eq!(mode("BEGIN"), Some(false));
    assert_eq!(mode("BEGIN READ ONLY, READ WRITE"), Some(false));
    assert_eq!(mode("BEGIN; BEGIN READ ONLY"), Some(false));
    assert_eq!(mode("BEGIN READ ONLY; SET TRANSACTION READ WRITE"), Some(false));
    assert_eq!(mode("SET LOCAL transaction_read_only = off"), Some(false));
    assert_eq!(mode("SET LOCAL \"transaction_read_only\" = off"), Some(false));
    assert_eq!(mode("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"), None);
    assert_eq!(mode("SELECT read only"), None);
    assert_eq!(mode("BEGIN /* READ ONLY */"), Some(false));
}

proptest! {
    #[test]
    fn a_text_of_any_pieces_is_read_without_a_panic_and_doubt_is_always_the_same(
        parts in proptest::collection::vec(proptest::sample::select(vec![
            "COMMIT", ";", "'", "''", "\\", "$$", "$a$", "$", "E'", "--", "\n", "/*", "*/", "\"", "SELECT", " ", "BEGIN",
            "READ ONLY", "ROLLBACK", "1", "-", "/",
        ]), 0..24),
        conforming: bool,
    ) {
        let e = read(&parts.concat(), conforming);
        prop_assert!(!e.goes_on || (e.ends && e.works), "{e:?}");
        prop_assert!(!e.commits || (e.ends && e.works), "{e:?}");
        prop_assert!(!e.calls || e.commits, "{e:?}");
    }

    #[test]
    fn a_commit_behind_a_closed_statement_is_found(
        quoted in "[^'\\\\]{0,12}", ident in "[^\"]{0,8}", comment in "[^*/]{0,8}", dollar in "[^$]{0,8}"
    ) {
        let text = format!("SELECT '{quoted}', \"{ident}\" /*{comment}*/, $q${dollar}$q$ ;COMMIT");
        prop_assert!(read(&text, true).commits);
    }
}
