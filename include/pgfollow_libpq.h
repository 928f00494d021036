/*
 * libpq programs follow the primary: glue over the program's own libpq. Include it behind nothing, link both libraries.
 *
 *     pgf_error *error = NULL;
 *     PGconn *conn = pgf_pq_connectdb(connector, 30000, &error);
 *
 * gives a PGconn on the host that the connector's target_session_attrs want, under guard: PQexec and all the rest stay as
 * they are, and so does PQfinish. A call that is blocked returns the moment its host is superseded or gone, with libpq's
 * own words (PQerrorMessage); pgf_pq_reason has ours. Then PQfinish it and connect again, or pgf_pq_reset it.
 *
 * What libpq offers is used: host and hostaddr both, so that sslmode=verify-full checks the name; and an event procedure
 * (libpq manual, "Event System") that guards the socket, guards it anew after PQreset, and tells the connector of the
 * SQLSTATE of each failed result. The connector must outlive its connections.
 */
#ifndef PGFOLLOW_LIBPQ_H
#define PGFOLLOW_LIBPQ_H

#include <libpq-events.h>
#include <libpq-fe.h>
#include <pgfollow.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What the event procedure keeps of a connection. */
typedef struct pgf_pq_guarded {
    pgf_connector *connector;
    pgf_target *target;
} pgf_pq_guarded;

static inline void pgf_pq_forget(pgf_pq_guarded *guarded)
{
    if (guarded) {
        pgf_target_free(guarded->target);
        free(guarded);
    }
}

/* The event procedure. Non-zero: it went well (libpq takes 0 as a failure of the whole connection). */
static inline int pgf_pq_events(PGEventId id, void *info, void *unused)
{
    (void)unused;
    if (id == PGEVT_RESULTCREATE) {
        PGEventResultCreate *event = (PGEventResultCreate *)info;
        pgf_pq_guarded *guarded = (pgf_pq_guarded *)PQinstanceData(event->conn, pgf_pq_events);
        const char *sqlstate = PQresultErrorField(event->result, PG_DIAG_SQLSTATE);
        if (guarded && sqlstate)
            pgf_feed(guarded->connector, guarded->target, sqlstate, strlen(sqlstate), NULL);
    } else if (id == PGEVT_CONNRESET) {
        /* PQreset dials the same host again: another socket. */
        PGEventConnReset *event = (PGEventConnReset *)info;
        pgf_pq_guarded *guarded = (pgf_pq_guarded *)PQinstanceData(event->conn, pgf_pq_events);
        if (guarded)
            pgf_guard(guarded->connector, PQsocket(event->conn), guarded->target, NULL);
    } else if (id == PGEVT_CONNDESTROY) {
        PGEventConnDestroy *event = (PGEventConnDestroy *)info;
        pgf_pq_forget((pgf_pq_guarded *)PQinstanceData(event->conn, pgf_pq_events));
    }
    return 1;
}

/* Puts a connection that has logged in to that target under guard, and takes the target; on failure it is freed. A
 * connection that failed (PQstatus) is left as it is. */
static inline pgf_status pgf_pq_guard(PGconn *conn, pgf_connector *connector, pgf_target *target, pgf_error **error)
{
    pgf_pq_guarded *guarded = NULL;
    pgf_status status = PGF_OK;
    if (PQstatus(conn) == CONNECTION_OK)
        status = pgf_guard(connector, PQsocket(conn), target, error);
    if (PQstatus(conn) == CONNECTION_OK && status == PGF_OK)
        guarded = (pgf_pq_guarded *)malloc(sizeof *guarded);
    if (!guarded) {
        pgf_target_free(target);
        return status;
    }
    guarded->connector = connector;
    guarded->target = target;
    if (!PQregisterEventProc(conn, pgf_pq_events, "pgfollow", NULL) ||
        !PQsetInstanceData(conn, pgf_pq_events, guarded))
        /* Out of memory in libpq: the socket is guarded all the same. */
        pgf_pq_forget(guarded);
    return PGF_OK;
}

/* As PQconnectdb, to the host that is wanted, once it is known and it is this login's turn: waits for that at most so many
 * milliseconds (then connect_timeout bounds the login). NULL with the error where no host could be named. Else a PGconn,
 * which may have failed as any other may: look at PQstatus, and PQfinish it in any case. */
static inline PGconn *pgf_pq_connectdb(pgf_connector *connector, uint32_t timeout_ms, pgf_error **error)
{
    pgf_target *target = NULL;
    const char *const *keywords, *const *values;
    PGconn *conn;
    if (pgf_locate(connector, timeout_ms, &target, error) != PGF_OK)
        return NULL;
    if (pgf_target_keywords(target, &keywords, &values, error) != PGF_OK) {
        pgf_target_free(target);
        return NULL;
    }
    conn = PQconnectdbParams(keywords, values, 0);
    if (pgf_pq_guard(conn, connector, target, error) != PGF_OK) {
        PQfinish(conn);
        return NULL;
    }
    return conn;
}

/* Finishes *conn and connects anew, wherever the wanted host is now: unlike PQreset, which dials the same one. *conn is
 * NULL where no host could be named. */
static inline pgf_status pgf_pq_reset(PGconn **conn, pgf_connector *connector, uint32_t timeout_ms, pgf_error **error)
{
    pgf_error *why = NULL;
    pgf_status status = PGF_OK;
    PQfinish(*conn);
    *conn = pgf_pq_connectdb(connector, timeout_ms, &why);
    if (why) {
        status = (pgf_status)pgf_error_code(why);
        if (error)
            *error = why;
        else
            pgf_error_free(why);
    }
    return status;
}

/* Why pgfollow ended that connection: a text to free, or NULL if it didn't (or it isn't under guard). */
static inline pgf_text *pgf_pq_reason(const PGconn *conn)
{
    pgf_pq_guarded *guarded = (pgf_pq_guarded *)PQinstanceData(conn, pgf_pq_events);
    pgf_text *reason = NULL;
    if (guarded)
        pgf_guard_reason(guarded->target, NULL, &reason, NULL);
    return reason;
}

/* A connect that the program's own loop drives. */
typedef struct pgf_pq_connecting {
    pgf_connector *connector;
    pgf_op *op;
    pgf_target *target;
    PGconn *conn;
} pgf_pq_connecting;

/* Begins what pgf_pq_connectdb does without waiting. NULL with the error. */
static inline pgf_pq_connecting *pgf_pq_connect_start(pgf_connector *connector, uint32_t timeout_ms, pgf_error **error)
{
    pgf_pq_connecting *c = (pgf_pq_connecting *)calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->connector = connector;
    if (pgf_locate_start(connector, timeout_ms, &c->op, error) != PGF_OK) {
        free(c);
        return NULL;
    }
    return c;
}

/* The descriptor to wait for before the next pgf_pq_connect_poll; another one may be next. */
static inline int pgf_pq_connect_fd(const pgf_pq_connecting *c)
{
    return c->conn ? PQsocket(c->conn) : pgf_op_fd(c->op);
}

/* As PQconnectPoll: call it when pgf_pq_connect_fd is readable or writable, as the last call said; before the first call
 * wait until it is readable. PGRES_POLLING_FAILED: with the error, or with the words of pgf_pq_connect_end's PGconn. */
static inline PostgresPollingStatusType pgf_pq_connect_poll(pgf_pq_connecting *c, pgf_error **error)
{
    PostgresPollingStatusType next;
    if (!c->conn) {
        const char *const *keywords, *const *values;
        if (pgf_op_target(c->op, &c->target, error) != PGF_OK ||
            pgf_target_keywords(c->target, &keywords, &values, error) != PGF_OK)
            return PGRES_POLLING_FAILED;
        c->conn = PQconnectStartParams(keywords, values, 0);
        /* libpq manual: behave as if PQconnectPoll had said PGRES_POLLING_WRITING. */
        return c->conn && PQstatus(c->conn) != CONNECTION_BAD ? PGRES_POLLING_WRITING : PGRES_POLLING_FAILED;
    }
    next = PQconnectPoll(c->conn);
    if (next == PGRES_POLLING_OK) {
        pgf_target *target = c->target;
        c->target = NULL;
        if (pgf_pq_guard(c->conn, c->connector, target, error) != PGF_OK)
            return PGRES_POLLING_FAILED;
    }
    return next;
}

/* Ends it, whether or not it was done: gives the PGconn, which is the caller's, or NULL if there is none. */
static inline PGconn *pgf_pq_connect_end(pgf_pq_connecting *c)
{
    PGconn *conn = c->conn;
    pgf_op_free(c->op);
    pgf_target_free(c->target);
    free(c);
    return conn;
}

#ifdef __cplusplus
}
#endif

#endif
