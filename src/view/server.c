#include "view/server.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/mem.h"
#include "view/ask.h"
#include "view/assets.h"

#define CONNECTIONS 64
#define THREADS 4
#define IDLE_SECONDS 10U                    /* without a byte */
#define REQUEST_NS UINT64_C(15000000000)    /* to send a whole request, or to take its answer */
#define CONNECTION_MEMORY ((size_t)1 << 15) /* for a request's head */
#define PORTS 32                            /* that are tried */

#define POLICY                                                                                     \
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "              \
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

typedef struct guest {
    int fd; /* -1: free */
    uint64_t since;
} guest;

struct tp_server {
    struct MHD_Daemon *daemon;
    tp_library *library;
    bool is_loopback;
    uint16_t port;
    char token[TP_TOKEN_SIZE];
    tp_buf script;
    pthread_mutex_t mutex;
    guest guests[CONNECTIONS + THREADS];
};

#define GUESTS (CONNECTIONS + THREADS)

static int fd_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    return info != NULL ? info->connect_fd : -1;
}

static void note(tp_server *server, struct MHD_Connection *connection, bool is_here)
{
    const int fd = fd_of(connection);
    bool done = fd < 0;
    pthread_mutex_lock(&server->mutex);
    for (int round = 0; round < 2 && !done; round++) {
        for (uint32_t i = 0; i < GUESTS && !done; i++) {
            guest *one = &server->guests[i];
            done = one->fd == (round == 0 ? fd : -1) && (round == 0 || is_here);
            if (done) {
                *one = (guest){is_here ? fd : -1, tp_clock_monotonic()};
            }
        }
    }
    pthread_mutex_unlock(&server->mutex);
}

static void notice_connection(void *context, struct MHD_Connection *connection, void **unused,
                              enum MHD_ConnectionNotificationCode code)
{
    (void)unused;
    note(context, connection, code == MHD_CONNECTION_NOTIFY_STARTED);
}

/* A request has been answered: the next one has as long again. */
static void notice_end(void *context, struct MHD_Connection *connection, void **unused,
                       enum MHD_RequestTerminationCode code)
{
    (void)unused;
    (void)code;
    note(context, connection, true);
}

void tp_server_tick(tp_server *server)
{
    const uint64_t now = tp_clock_monotonic();
    pthread_mutex_lock(&server->mutex);
    for (uint32_t i = 0; i < GUESTS; i++) {
        const guest *one = &server->guests[i];
        if (one->fd >= 0 && now - one->since > REQUEST_NS) {
            shutdown(one->fd, SHUT_RDWR);
        }
    }
    pthread_mutex_unlock(&server->mutex);
}

static const char *header(struct MHD_Connection *connection, const char *name)
{
    return MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
}

/* A page of another site may have its name lead to this machine: then it asks for that name. */
static bool is_our_host(const tp_server *server, struct MHD_Connection *connection)
{
    static const char *const names[] = {"localhost", "127.0.0.1", "[::1]"};
    const char *host = header(connection, "Host");
    if (host == NULL) {
        return false;
    }
    if (!server->is_loopback) {
        return true; /* any of the machine's names; the token decides */
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const size_t length = strlen(names[i]);
        if (strncasecmp(host, names[i], length) == 0 &&
            (host[length] == '\0' ||
             (host[length] == ':' && host[length + 1] != '\0' &&
              strspn(host + length + 1, "0123456789") == strlen(host + length + 1)))) {
            return true;
        }
    }
    return false;
}

/* What a page of another site asks for. A link to a page may come from anywhere. */
static bool is_foreign(struct MHD_Connection *connection, bool is_page)
{
    const char *site = header(connection, "Sec-Fetch-Site");
    const char *mode = header(connection, "Sec-Fetch-Mode");
    const char *origin = header(connection, "Origin");
    const char *host = header(connection, "Host");
    if (site != NULL && strcmp(site, "same-origin") != 0 && strcmp(site, "none") != 0 &&
        !(is_page && mode != NULL && strcmp(mode, "navigate") == 0)) {
        return true;
    }
    if (origin == NULL) {
        return false;
    }
    const char *name = strstr(origin, "://");
    return name == NULL || host == NULL || strcasecmp(name + 3, host) != 0;
}

/* In the same time wherever they differ. */
static bool is_token(const tp_server *server, const char *text)
{
    uint8_t difference = 0;
    if (text == NULL || strlen(text) < TP_TOKEN_SIZE - 1) {
        return false;
    }
    for (size_t i = 0; i < TP_TOKEN_SIZE - 1; i++) {
        difference |= (uint8_t)(server->token[i] ^ text[i]);
    }
    return difference == 0;
}

static enum MHD_Result reply(struct MHD_Connection *connection, unsigned code, const char *type,
                             const void *bytes, size_t size, enum MHD_ResponseMemoryMode mode,
                             const char *cookie, const char *location)
{
    static const char *const headers[][2] = {
        {"Content-Security-Policy", POLICY},
        {"X-Content-Type-Options", "nosniff"},
        {"Referrer-Policy", "no-referrer"},
        {"Cross-Origin-Resource-Policy", "same-origin"},
        {"Cross-Origin-Opener-Policy", "same-origin"},
        {"Cache-Control", "no-store"},
    };
    union {
        const void *given;
        void *taken;
    } body = {bytes};
    struct MHD_Response *response = MHD_create_response_from_buffer(size, body.taken, mode);
    if (response == NULL) {
        return MHD_NO;
    }
    MHD_add_response_header(response, "Content-Type", type);
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        MHD_add_response_header(response, headers[i][0], headers[i][1]);
    }
    if (cookie != NULL) {
        MHD_add_response_header(response, "Set-Cookie", cookie);
    }
    if (location != NULL) {
        MHD_add_response_header(response, "Location", location);
    }
    const enum MHD_Result result = MHD_queue_response(connection, code, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result refuse(struct MHD_Connection *connection, unsigned code, const char *text)
{
    return reply(connection, code, "text/plain; charset=utf-8", text, strlen(text),
                 MHD_RESPMEM_PERSISTENT, NULL, NULL);
}

static enum MHD_Result take_param(void *context, enum MHD_ValueKind kind, const char *name,
                                  const char *value)
{
    tp_ask *ask = context;
    (void)kind;
    if (ask->count < TP_ASK_PARAMS && name != NULL) {
        ask->params[ask->count++] = (tp_ask_param){name, value};
    }
    return MHD_YES;
}

static enum MHD_Result answer_api(tp_server *server, struct MHD_Connection *connection,
                                  const char *path)
{
    tp_ask ask = {.path = path};
    tp_answer answer;
    MHD_get_connection_values(connection, MHD_GET_ARGUMENT_KIND, take_param, &ask);
    tp_answer_ask(server->library, &ask, &answer);
    const enum MHD_Result result = reply(connection, answer.code, answer.type, answer.body.data,
                                         answer.body.size, MHD_RESPMEM_MUST_COPY, NULL, NULL);
    tp_buf_free(&answer.body);
    return result;
}

/* Lets in who has the token, and takes it out of the address. */
static enum MHD_Result greet(tp_server *server, struct MHD_Connection *connection, const char *path)
{
    char cookie[128];
    snprintf(cookie, sizeof cookie, "tensorprobe=%s; Path=/; HttpOnly; SameSite=Strict",
             server->token);
    return reply(connection, MHD_HTTP_SEE_OTHER, "text/plain", "", 0, MHD_RESPMEM_PERSISTENT,
                 cookie, strncmp(path, "/r/", 3) == 0 ? path : "/");
}

static enum MHD_Result handle(void *context, struct MHD_Connection *connection, const char *path,
                              const char *method, const char *version, const char *upload,
                              size_t *upload_size, void **state)
{
    static int seen;
    tp_server *server = context;
    (void)version;
    (void)upload;
    if (*state == NULL) { /* the head is there; the body, if any, is thrown away */
        *state = &seen;
        return MHD_YES;
    }
    if (*upload_size > 0) {
        *upload_size = 0;
        return MHD_YES;
    }
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0) {
        return refuse(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET");
    }
    const bool is_api = strncmp(path, "/api/", 5) == 0;
    const bool is_page = strcmp(path, "/") == 0 || strncmp(path, "/r/", 3) == 0;
    if (!is_our_host(server, connection)) {
        return refuse(connection, MHD_HTTP_FORBIDDEN, "not under this name: write localhost");
    }
    if (is_foreign(connection, is_page)) {
        return refuse(connection, MHD_HTTP_FORBIDDEN, "not from another site");
    }
    if (server->token[0] != '\0') {
        if (is_page && is_token(server, MHD_lookup_connection_value(
                                            connection, MHD_GET_ARGUMENT_KIND, "token"))) {
            return greet(server, connection, path);
        }
        if (!is_token(server,
                      MHD_lookup_connection_value(connection, MHD_COOKIE_KIND, "tensorprobe"))) {
            return refuse(connection, MHD_HTTP_FORBIDDEN,
                          "open the address that tensorprobe view has printed, with its token");
        }
    }
    if (is_api) {
        return answer_api(server, connection, path + 5);
    }
    if (strcmp(path, "/app.js") == 0) {
        return reply(connection, MHD_HTTP_OK, "text/javascript; charset=utf-8", server->script.data,
                     server->script.size, MHD_RESPMEM_PERSISTENT, NULL, NULL);
    }
    const tp_asset *asset = tp_asset_find(is_page ? "index.html" : path + 1);
    return asset != NULL ? reply(connection, MHD_HTTP_OK, asset->type, asset->bytes, asset->size,
                                 MHD_RESPMEM_PERSISTENT, NULL, NULL)
                         : refuse(connection, MHD_HTTP_NOT_FOUND, "there is no such page");
}

typedef struct place {
    struct sockaddr_storage address;
    bool is_six;
} place;

static tp_status read_address(const char *text, place *out, bool *is_loopback, tp_error *error)
{
    struct sockaddr_in *four = (struct sockaddr_in *)(void *)&out->address;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)(void *)&out->address;
    memset(out, 0, sizeof *out);
    if (inet_pton(AF_INET, text, &four->sin_addr) == 1) {
        four->sin_family = AF_INET;
        *is_loopback = ntohl(four->sin_addr.s_addr) >> 24 == 127;
        return TP_OK;
    }
    if (inet_pton(AF_INET6, text, &six->sin6_addr) == 1) {
        six->sin6_family = AF_INET6;
        out->is_six = true;
        *is_loopback = IN6_IS_ADDR_LOOPBACK(&six->sin6_addr) != 0;
        return TP_OK;
    }
    return tp_fail(error, TP_ERR_ARGUMENT,
                   "'%.60s' is no address: write 127.0.0.1, 0.0.0.0 or the numbers of one of this "
                   "machine's",
                   text);
}

static struct MHD_Daemon *listen_at(tp_server *server, place *at, uint16_t port)
{
    if (at->is_six) {
        ((struct sockaddr_in6 *)(void *)&at->address)->sin6_port = htons(port);
    } else {
        ((struct sockaddr_in *)(void *)&at->address)->sin_port = htons(port);
    }
    /* By poll: with epoll, which tells of an end once, the end of a connection that comes together
     * with a part of a request isn't seen, and it holds its place until it is ended. */
    const unsigned flags = MHD_USE_POLL_INTERNAL_THREAD | (at->is_six ? MHD_USE_IPv6 : 0U);
    return MHD_start_daemon(
        flags, port, NULL, NULL, handle, server, MHD_OPTION_SOCK_ADDR, &at->address,
        MHD_OPTION_THREAD_POOL_SIZE, (unsigned)THREADS, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT, IDLE_SECONDS,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, CONNECTION_MEMORY, MHD_OPTION_NOTIFY_CONNECTION,
        notice_connection, server, MHD_OPTION_NOTIFY_COMPLETED, notice_end, server, MHD_OPTION_END);
}

static tp_status make_token(tp_server *server, tp_error *error)
{
    uint8_t bytes[(TP_TOKEN_SIZE - 1) / 2];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) {
        return tp_fail(error, TP_ERR_IO, "can't make a token");
    }
    for (size_t i = 0; i < sizeof bytes; i++) {
        snprintf(server->token + 2 * i, 3, "%02x", bytes[i]);
    }
    return TP_OK;
}

tp_status tp_server_open(tp_server **out, tp_library *library, const tp_server_options *options,
                         tp_error *error)
{
    place at;
    tp_server *server = tp_calloc(1, sizeof *server);
    if (server == NULL) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory for a server");
    }
    server->library = library;
    pthread_mutex_init(&server->mutex, NULL);
    for (uint32_t i = 0; i < GUESTS; i++) {
        server->guests[i].fd = -1;
    }
    tp_asset_put_script(&server->script);
    tp_status status = read_address(options->address, &at, &server->is_loopback, error);
    if (status == TP_OK && (options->with_token || !server->is_loopback)) {
        status = make_token(server, error);
    }
    for (uint32_t i = 0; status == TP_OK && server->daemon == NULL && i < PORTS; i++) {
        server->daemon = listen_at(server, &at, (uint16_t)(options->port + i));
        if (server->daemon == NULL && (!options->search || i + 1 == PORTS)) {
            status = tp_fail(error, TP_ERR_IO, "can't listen at %s, port %u: is it taken?",
                             options->address, (unsigned)options->port);
        }
    }
    if (status == TP_OK && server->script.failed) {
        status = tp_fail(error, TP_ERR_NOMEM, "no memory for a server");
    }
    if (status != TP_OK) {
        tp_server_close(server);
        return status;
    }
    const union MHD_DaemonInfo *info =
        MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_BIND_PORT);
    server->port = info != NULL ? info->port : 0;
    *out = server;
    return TP_OK;
}

void tp_server_close(tp_server *server)
{
    if (server == NULL) {
        return;
    }
    if (server->daemon != NULL) {
        MHD_stop_daemon(server->daemon);
    }
    tp_buf_free(&server->script);
    pthread_mutex_destroy(&server->mutex);
    tp_free(server);
}

uint16_t tp_server_port(const tp_server *server)
{
    return server->port;
}

const char *tp_server_token(const tp_server *server)
{
    return server->token;
}
