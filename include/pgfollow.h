/*
 * pgfollow: follow the PostgreSQL primary through a failover. C interface. Generated from ffi-c/src: don't edit.
 *
 * Conventions
 *
 * - Objects are opaque. What a function gives belongs to the caller, who gives it to the _free of its type, once. Every
 *   _free takes NULL. Option and result structures (pgf_failure, pgf_verdict) are the caller's, and begin with their size.
 * - A handle that is NULL where an object is needed, was freed already, is of another type or is the parent's in a forked
 *   child is an error (PGF_WRONG_CALL) as long as that can be told: freed handles are remembered for some thousand frees.
 * - Strings come in as a pointer and a length in bytes, in UTF-8, and are copied; NULL with length 0 is an empty one.
 *   Strings that go out end with a zero byte, belong to the object that gave them, and live as long as it.
 * - A function that can fail returns a pgf_status: PGF_OK, which is 0, or the number of what went wrong. The numbers are
 *   the same in every language, and never change. Newer libraries may return numbers that this header doesn't have.
 *   Its last parameter is a pgf_error **: NULL if you don't want it; else it gets the whole error on failure.
 * - What goes out comes last, before the error, and is left as it was on failure. Results that may be NULL
 *   (of pgf_check_outcome, pgf_health, pgf_guard_reason, pgf_guard_peers) say so in their comments. Every other one is needed.
 * - Any number of threads may use one connector at once. Errors, events and texts never change, so any thread may read
 *   them. An object is freed by one thread, when no other one reads what it gave.
 * - Every wait has a bound: timeout_ms, in milliseconds. No function may be called from a signal handler.
 * - Nothing unwinds into the caller: an error of the library itself is PGF_INTERNAL. Signals are left alone: the library
 *   installs no handler, blocks them in its own threads, and writes to no socket in a way that raises SIGPIPE.
 * - Options are strings (pgf_connector_set): docs/options.md has them.
 */

#ifndef PGFOLLOW_H
#define PGFOLLOW_H

#include <stddef.h>
#include <stdint.h>

// The header's version.
#define PGF_VERSION "0.1.0"

// The first part of the header's version.
#define PGF_VERSION_MAJOR 0

// Its second part.
#define PGF_VERSION_MINOR 1

// Its third part.
#define PGF_VERSION_PATCH 0

// All of it, to be compared: major * 65536 + minor * 256 + patch.
#define PGF_VERSION_NUMBER 256

// What a call came to. The numbers are the same in every language, and are never used for anything else.
enum pgf_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // It went well.
    PGF_OK = 0,
    // The connection string can't be read.
    PGF_INVALID_CONNINFO = 1,
    // An option has a value that it can't have, or two options contradict each other.
    PGF_INVALID_OPTION = 2,
    // An option asks for something that pgfollow can't do.
    PGF_UNSUPPORTED_OPTION = 3,
    // A file that an option names can't be read or used (certificate, key, password or service file).
    PGF_UNUSABLE_FILE = 4,
    // The name doesn't exist.
    PGF_NO_SUCH_NAME = 10,
    // No answer, or a failure, from the name servers.
    PGF_RESOLVE_FAILED = 11,
    // The host refused, is unreachable, or the socket failed.
    PGF_DIAL_FAILED = 20,
    // The host didn't finish its part in time (dial, TLS, login or role).
    PGF_CONNECT_TIMED_OUT = 21,
    // The server has no TLS and the configuration requires it.
    PGF_TLS_REFUSED = 30,
    // The TLS handshake failed.
    PGF_TLS_FAILED = 31,
    // The certificate isn't the configured host's.
    PGF_TLS_IDENTITY = 32,
    // What answered doesn't speak PostgreSQL's protocol, or broke its limits.
    PGF_PROTOCOL_VIOLATION = 40,
    // The connection ended during login.
    PGF_HANDSHAKE_LOST = 41,
    // The server asks for an authentication that the configuration or pgfollow doesn't allow.
    PGF_AUTHENTICATION_METHOD = 42,
    // The server reported an error (see the SQLSTATE).
    PGF_SERVER = 50,
    // The call itself doesn't fit: its parameters, the columns it reads, or the number of rows it expects.
    PGF_WRONG_CALL = 51,
    // A host answered and isn't of the wanted role.
    PGF_WRONG_ROLE = 60,
    // No host of the list could be used.
    PGF_NO_HOST_FITS = 61,
    // The connection was lost.
    PGF_CONNECTION_LOST = 70,
    // The session's host was superseded by another primary.
    PGF_SUPERSEDED = 71,
    // The session's host restarted, was demoted, or is down.
    PGF_HOST_GONE = 72,
    // The caller's deadline passed during a call.
    PGF_CALL_TIMED_OUT = 73,
    // COMMIT was answered ROLLBACK: nothing of the transaction was kept.
    PGF_ROLLED_BACK = 74,
    // The caller's deadline passed before a session could be had.
    PGF_DEADLINE_PASSED = 80,
    // The connector is closed.
    PGF_CLOSED = 81,
    // Refused at once: the caller could not have been served within its patience. `retry_after` says when to come back.
    PGF_OVERLOADED = 82,
    // A closure of `run` ended its own transaction.
    PGF_TRANSACTION_CONTROL = 90,
    // Committed on this host, but the wait for a synchronous standby was broken off.
    PGF_REPLICATION_UNKNOWN = 91,
    // The closure of `run` gave up for a reason of its own (the error underneath).
    PGF_GAVE_UP = 92,
    // An error of pgfollow itself: please report it.
    PGF_INTERNAL = 99,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum pgf_status pgf_status;
#else
typedef int32_t pgf_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What an error says about the work that was asked for.
enum pgf_class
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // No error.
    PGF_CLASS_NONE = 0,
    // Certainly not done: try again after a pause.
    PGF_CLASS_TRANSIENT = 1,
    // Repeating is wrong or useless.
    PGF_CLASS_PERMANENT = 2,
    // May have been done: check, don't repeat.
    PGF_CLASS_UNKNOWN_OUTCOME = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum pgf_class pgf_class;
#else
typedef int32_t pgf_class;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What became of a transaction.
enum pgf_outcome
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // It committed.
    PGF_OUTCOME_COMMITTED = 1,
    // It didn't, and it never can any more: do it again.
    PGF_OUTCOME_NOT_COMMITTED = 2,
    // Nobody can tell, or not yet.
    PGF_OUTCOME_UNKNOWN = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum pgf_outcome pgf_outcome;
#else
typedef int32_t pgf_outcome;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// When a failure happened.
enum pgf_phase
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Looking a name up.
    PGF_PHASE_RESOLVE = 1,
    // Opening the socket.
    PGF_PHASE_CONNECT = 2,
    // TLS, login, role.
    PGF_PHASE_HANDSHAKE = 3,
    // Nobody was using the connection.
    PGF_PHASE_IDLE = 4,
    // Waiting for a connection of the pool.
    PGF_PHASE_ACQUIRE = 5,
    // A request that can't end its transaction block, or one outside any block.
    PGF_PHASE_STATEMENT = 6,
    // A request that may end the transaction, or of which nobody is sure.
    PGF_PHASE_COMMIT = 7,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum pgf_phase pgf_phase;
#else
typedef int32_t pgf_phase;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What was seen of a failure.
enum pgf_signal
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // The transport failed: refused, reset, end of file, timed out.
    PGF_SIGNAL_IO = 1,
    // A look-up failed: `rcode`, `resolved_before`.
    PGF_SIGNAL_DNS = 2,
    // The server said something: `sqlstate`, `severity`, `is_notice`, `ended`, `routine`.
    PGF_SIGNAL_SQLSTATE = 3,
    // The certificate, the version, no TLS at all.
    PGF_SIGNAL_TLS = 4,
    // The host isn't of the wanted role.
    PGF_SIGNAL_ROLE_MISMATCH = 5,
    // A deadline passed: the caller's, or connect_timeout.
    PGF_SIGNAL_DEADLINE = 6,
    // COMMIT was answered ROLLBACK; `sqlstate` is what had failed the block, if known.
    PGF_SIGNAL_ROLLED_BACK = 7,
    // No connection of the pool came free in time.
    PGF_SIGNAL_ACQUIRE_TIMEOUT = 8,
    // The pool refused at once.
    PGF_SIGNAL_OVERLOADED = 9,
    // The pool is closed.
    PGF_SIGNAL_POOL_CLOSED = 10,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum pgf_signal pgf_signal;
#else
typedef int32_t pgf_signal;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What a request does.
enum pgf_effect
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Declared read-only by the caller.
    PGF_EFFECT_READ = 1,
    // Changes something, or nobody said that it doesn't.
    PGF_EFFECT_WRITE = 2,
    // Nothing that lasts: BEGIN, SET, ROLLBACK, a ping.
    PGF_EFFECT_NONE = 3,
    // COPY FROM STDIN.
    PGF_EFFECT_COPY_IN = 4,
    // LISTEN.
    PGF_EFFECT_LISTEN = 5,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum pgf_effect pgf_effect;
#else
typedef int32_t pgf_effect;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How much of a request had been handed to the kernel.
enum pgf_sent
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Not a byte.
    PGF_SENT_NONE = 1,
    // Some of it.
    PGF_SENT_PARTIAL = 2,
    // All of it.
    PGF_SENT_COMPLETE = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum pgf_sent pgf_sent;
#else
typedef int32_t pgf_sent;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Three answers to a question.
enum pgf_answer
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Nobody said.
    PGF_NOT_SAID = 0,
    // Yes.
    PGF_YES = 1,
    // No.
    PGF_NO = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum pgf_answer pgf_answer;
#else
typedef int32_t pgf_answer;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What may be repeated.
enum pgf_retry_unit
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Nothing.
    PGF_RETRY_NONE = 0,
    // The connect.
    PGF_RETRY_CONNECT = 1,
    // The statement.
    PGF_RETRY_STATEMENT = 2,
    // The whole transaction (where none was open, the statement is all of it).
    PGF_RETRY_TRANSACTION = 3,
    // Nothing before the outcome is known.
    PGF_RETRY_OUTCOME_CHECK = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum pgf_retry_unit pgf_retry_unit;
#else
typedef int32_t pgf_retry_unit;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Watches the hosts of one connection string. Any number of threads may use it at once; one thread frees it.
typedef struct pgf_connector pgf_connector;

// An error. What its functions return belongs to it. Any thread may read it.
typedef struct pgf_error pgf_error;

// Something that happened to the hosts or to the sessions. What its functions return belongs to it. Any thread may read
// it.
typedef struct pgf_event pgf_event;

// A pgf_locate under way. Any thread may ask it.
typedef struct pgf_op pgf_op;

// Where one session is to be dialled to. Any thread may read it. It holds a login's turn until pgf_guard has it, or it
// is freed.
typedef struct pgf_target pgf_target;

// A text that a call gave, such as JSON. Any thread may read it.
typedef struct pgf_text pgf_text;

// What is known of a failure. Set all of it to zero, then `size` to sizeof(pgf_failure), then what you know: zero is "not
// said" everywhere, and gets the careful answer (a write, completely sent, which may have committed by itself). The texts
// need not end with a zero byte.
typedef struct pgf_failure {
    // sizeof(pgf_failure).
    size_t size;
    // A pgf_phase. Needed.
    int32_t phase;
    // A pgf_signal. Needed.
    int32_t signal;
    // The name server's answer: NXDOMAIN, NODATA, SERVFAIL, ...
    const char *rcode;
    // Its length.
    size_t rcode_len;
    // The server's SQLSTATE.
    const char *sqlstate;
    // Its length: 5.
    size_t sqlstate_len;
    // The severity in English (PG_DIAG_SEVERITY_NONLOCALIZED); not said: ERROR.
    const char *severity;
    // Its length.
    size_t severity_len;
    // The message's routine (PG_DIAG_SOURCE_FUNCTION).
    const char *routine;
    // Its length.
    size_t routine_len;
    // The text with which the application opened the transaction, such as BEGIN READ ONLY.
    const char *application_opened;
    // Its length.
    size_t application_opened_len;
    // Not 0: this process has resolved the name before.
    int32_t resolved_before;
    // Not 0: the SQLSTATE came in a notice, not in an error.
    int32_t is_notice;
    // Not 0: the connection ended behind the message.
    int32_t ended;
    // A pgf_effect.
    int32_t effect;
    // A pgf_sent.
    int32_t sent;
    // A pgf_answer: whether a transaction block was open when the request was sent.
    int32_t in_transaction;
    // Not 0: CALL, DO, CREATE INDEX CONCURRENTLY, which can commit in their middle. Not the careful answer: say it where
    // it is so.
    int32_t may_commit_inside;
    // Not 0: the host was well within the last minute.
    int32_t healthy_lately;
} pgf_failure;

// What to do about a failure. Set `size` to sizeof(pgf_verdict) before the call.
typedef struct pgf_verdict {
    // sizeof(pgf_verdict).
    size_t size;
    // A pgf_class: what it says about the work.
    int32_t error_class;
    // A pgf_retry_unit: what may be repeated.
    int32_t retry_unit;
    // 1: this connection must not be used again.
    int32_t discard;
    // 1: hand none of the other connections to the host out untested. 0: they are well.
    int32_t recheck_siblings;
    // 1: another host may do better.
    int32_t next_host;
    // 1: wait, with jitter, before another try.
    int32_t backoff;
    // 0: nobody was using the connection, so nobody need hear of it.
    int32_t shown_to_caller;
} pgf_verdict;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Says what a failure means for the work: of a libpq connection or of any other driver's.
pgf_status pgf_classify(const struct pgf_failure *failure,
                        struct pgf_verdict *verdict,
                        struct pgf_error **error);

// Reads a connection string (a URI or keyword=value pairs, with libpq's keywords, environment, service and password
// files) and makes a connector. It starts nothing yet. Give it to pgf_connector_free.
//
// PGF_INVALID_CONNINFO, PGF_INVALID_OPTION, PGF_UNSUPPORTED_OPTION, PGF_UNUSABLE_FILE: the message names the option and
// the remedy.
pgf_status pgf_connector_new(const char *conninfo,
                             size_t conninfo_len,
                             struct pgf_connector **connector,
                             struct pgf_error **error);

// Sets an option above the connection string, before the connector's first use. An option that can't be used, alone or
// beside the others, is an error and changes nothing.
pgf_status pgf_connector_set(struct pgf_connector *connector,
                             const char *keyword,
                             size_t keyword_len,
                             const char *value,
                             size_t value_len,
                             struct pgf_error **error);

// Ends the watching and frees the connector. A call that another thread is in ends as it would have; one that waits for
// an event ends at once with PGF_CLOSED. NULL is allowed.
pgf_status pgf_connector_free(struct pgf_connector *connector);

// What the connection string and the options came to, as `pgfollow config --json` prints it: candidates, options with
// value and origin, warnings. No password is in it. This is no use of the connector: options may still be set.
pgf_status pgf_config_json(const struct pgf_connector *connector,
                           struct pgf_text **json,
                           struct pgf_error **error);

// What is known of every host now, as JSON. Starts the watching.
pgf_status pgf_topology_json(struct pgf_connector *connector,
                             struct pgf_text **json,
                             struct pgf_error **error);

// What the connector did and met since it was made, and where the time of each outage went, as JSON
// (docs/report.schema.json). `pgfollow report FILE --html OUT` makes a page of it.
pgf_status pgf_report_json(struct pgf_connector *connector, struct pgf_text **json, struct pgf_error **error);

// Whether writing works now, by what the watching knows: it asks nobody and may be called as often as you like. Starts
// the watching. `ready` gets 1 or 0; `reason`, which may be NULL, gets the reason for 0, and NULL for 1.
//
// Don't answer a load balancer's readiness probe by it alone: in a failover every instance of a service would call
// itself unready at the same moment.
pgf_status pgf_health(struct pgf_connector *connector,
                      int32_t *ready,
                      struct pgf_text **reason,
                      struct pgf_error **error);

// The whole in words, with every attempt of a connect on a line of its own. It holds no password and no query, and may
// be logged. NULL if that isn't a pgf_error.
const char *pgf_error_message(const struct pgf_error *error);

// What the call returned. PGF_OK for NULL, PGF_WRONG_CALL if that isn't a pgf_error.
pgf_status pgf_error_code(const struct pgf_error *error);

// What it says about the work. PGF_CLASS_NONE if that isn't a pgf_error.
pgf_class pgf_error_class(const struct pgf_error *error);

// The server's SQLSTATE, five characters; NULL where the server gave none.
const char *pgf_error_sqlstate(const struct pgf_error *error);

// All that it says as a JSON object: ok (false), class, code, sqlstate, stage, message, attempts, host, sent,
// transaction, retry_after_ms, token; null for what isn't known. Keys may be added. NULL if that isn't a pgf_error.
const char *pgf_error_json(const struct pgf_error *error);

// Frees it. NULL is allowed.
pgf_status pgf_error_free(struct pgf_error *error);

// Waits for the next event, at most that many milliseconds (0: not at all). The first call of this or of pgf_event_fd
// starts the watching; events from before it are not kept. `event` gets NULL if none came in time. Of events that nobody
// fetched, the last 1,024 are kept. Each event goes to one of the threads that wait.
pgf_status pgf_next_event(struct pgf_connector *connector,
                          uint32_t timeout_ms,
                          struct pgf_event **event,
                          struct pgf_error **error);

// A descriptor for poll, epoll or an event loop: readable while pgf_next_event has an event to give. Don't read from it
// and don't close it: it is the connector's, and closed with it.
pgf_status pgf_event_fd(struct pgf_connector *connector,
                        int *fd,
                        struct pgf_error **error);

// The name of its kind, such as new_primary. NULL if that isn't a pgf_event.
const char *pgf_event_name(const struct pgf_event *event);

// In words. NULL if that isn't a pgf_event.
const char *pgf_event_text(const struct pgf_event *event);

// As a JSON object. Keys may be added. NULL if that isn't a pgf_event.
const char *pgf_event_json(const struct pgf_event *event);

// How many events were dropped just before it, because nobody fetched them.
uint64_t pgf_event_missed(const struct pgf_event *event);

// Frees it. NULL is allowed.
pgf_status pgf_event_free(struct pgf_event *event);

// As pgf_locate, without waiting: poll pgf_op_fd, then take the target. Free the op in any case; one that is freed
// before its end is given up.
pgf_status pgf_locate_start(struct pgf_connector *connector,
                            uint32_t timeout_ms,
                            struct pgf_op **op,
                            struct pgf_error **error);

// A descriptor for poll, epoll or an event loop: it turns readable once, when the op is done or its time is over, and
// stays so. There is no timer to keep beside it. Don't read from it and don't close it: it is the op's. -1 if that isn't
// a pgf_op.
int pgf_op_fd(const struct pgf_op *op);

// Takes the target, once the op is done; the second time there is none. Fails with what pgf_locate would have.
//
// PGF_WRONG_CALL: it isn't done yet, or its result was taken.
pgf_status pgf_op_target(struct pgf_op *op,
                         struct pgf_target **target,
                         struct pgf_error **error);

// Frees it, and gives it up if it isn't done. NULL is allowed.
pgf_status pgf_op_free(struct pgf_op *op);

// Asks the primary what became of the transaction that left this token (key token of an error's JSON), until there is
// an answer or that many milliseconds. Any number of checks, side by side and in different processes, get the same answer.
// `reason`, which may be NULL, gets why nobody can tell, and NULL where the outcome is known.
//
// Fails only where no other try can help, such as a wrong password.
pgf_status pgf_check_outcome(struct pgf_connector *connector,
                             const char *token,
                             size_t token_len,
                             uint32_t timeout_ms,
                             pgf_outcome *outcome,
                             struct pgf_text **reason,
                             struct pgf_error **error);

// The library's version, which may be newer than the header's.
const char *pgf_version(void);

// The same as a number, to be compared with PGF_VERSION_NUMBER.
int32_t pgf_version_number(void);

// Call it before a fork, while no other thread is in a call of pgfollow: it ends the library's threads and closes its
// sockets, so that the child has no copy of them. In the parent everything starts again with the next call.
//
// Without it a fork is safe too, but the child holds copies of the sockets until it ends or calls exec, and the server
// sees them as open for as long.
pgf_status pgf_before_fork(struct pgf_error **error);

// Call it in the child after a fork, if you like: it forgets the parent's handles. The child's first call of pgfollow
// does the same. Every handle of the parent's is an error in the child, which makes its own; what they held is not freed
// there.
pgf_status pgf_after_fork_child(void);

// Waits until the host that connections are wanted to is known and it is this login's turn, at most that many
// milliseconds, and says where to dial. In a failover it waits for the new primary. The role is target_session_attrs;
// read-write if the string has several hosts and doesn't say.
//
// PGF_DEADLINE_PASSED: nobody fits yet. PGF_OVERLOADED: its turn would come too late. Both are transient.
pgf_status pgf_locate(struct pgf_connector *connector,
                      uint32_t timeout_ms,
                      struct pgf_target **target,
                      struct pgf_error **error);

// The same for another role: any, read-write, read-only, primary, standby or prefer-standby.
pgf_status pgf_locate_as(struct pgf_connector *connector,
                         const char *attrs,
                         size_t attrs_len,
                         uint32_t timeout_ms,
                         struct pgf_target **target,
                         struct pgf_error **error);

// The host's name as configured: what a certificate is checked against. NULL if that isn't a pgf_target.
const char *pgf_target_host(const struct pgf_target *target);

// The IP address to dial; NULL for a Unix socket, or if that isn't a pgf_target.
const char *pgf_target_hostaddr(const struct pgf_target *target);

// The port. 0 if that isn't a pgf_target.
uint16_t pgf_target_port(const struct pgf_target *target);

// What the host last said of itself: primary, primary_read_only or standby. NULL if that isn't known, or if that isn't a
// pgf_target.
const char *pgf_target_role(const struct pgf_target *target);

// The host's timeline; 0 for a standby, where it may not be read, or if that isn't a pgf_target.
uint32_t pgf_target_timeline(const struct pgf_target *target);

// The keywords and values that lead libpq there (PQconnectdbParams), each list ended by NULL; whatever else the
// connection string has that libpq knows is among them, the password included. They belong to the target.
pgf_status pgf_target_keywords(const struct pgf_target *target,
                               const char *const **keywords,
                               const char *const **values,
                               struct pgf_error **error);

// Frees it. The guards of its sockets stay. NULL is allowed.
pgf_status pgf_target_free(struct pgf_target *target);

// Puts the socket of a session that was dialled to that target under guard, after its login: its options are set, its
// silence makes the host suspect, and it is shut down the moment its host is no longer the right one, so that a blocked
// read returns. The descriptor stays yours and is never closed here. There is nothing to free: the guard ends by itself
// when you close the descriptor.
//
// PGF_WRONG_CALL: it is no socket, or leads elsewhere.
pgf_status pgf_guard(struct pgf_connector *connector,
                     int fd,
                     const struct pgf_target *target,
                     struct pgf_error **error);

// Why pgfollow shut the socket down that was last guarded with this target; `reason` gets NULL if it didn't. `usable`,
// which may be NULL, gets 0 once the session isn't to be used any more (its host was restarted, say, and what runs may
// end by itself; or the socket was closed), else 1.
//
// PGF_WRONG_CALL: none was guarded with it.
pgf_status pgf_guard_reason(const struct pgf_target *target,
                            int32_t *usable,
                            struct pgf_text **reason,
                            struct pgf_error **error);

// Guards this process's TCP sockets to known hosts that aren't guarded yet, for drivers that tell no descriptor; `found`,
// which may be NULL, gets how many are new.
pgf_status pgf_guard_peers(struct pgf_connector *connector,
                           size_t *found,
                           struct pgf_error **error);

// Tells of an SQLSTATE that the driver met on a session to that target, or while it logged in there.
pgf_status pgf_feed(struct pgf_connector *connector,
                    const struct pgf_target *target,
                    const char *sqlstate,
                    size_t sqlstate_len,
                    struct pgf_error **error);

// The text, with a zero byte behind it; NULL if that isn't a pgf_text. It lives as long as the pgf_text.
const char *pgf_text_data(const struct pgf_text *text);

// Its length in bytes, without the zero byte.
size_t pgf_text_len(const struct pgf_text *text);

// Frees it. NULL is allowed.
pgf_status pgf_text_free(struct pgf_text *text);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PGFOLLOW_H */
