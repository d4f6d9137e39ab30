/* A provider of libfabric that does nothing but copy tagged messages through shared memory: no
 * daemon, no deaths, no waiting, no long messages, no other operations. The latency of MPI over it
 * is that of MPI's and libfabric's own calls, and of one cache line between two cores. No provider
 * can be faster. bench/mpi.py builds it as libfloor-fi.so. Two processes trust each other here. */
#include <errno.h>
#include <fcntl.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <rdma/providers/fi_prov.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { NAME = 32, BYTES = 4096, SLOTS = 256, SENDERS = 8, PEERS = 64, POSTS = 4096 };

struct slot {
    _Alignas(64) atomic_uint full;
    uint32_t length;
    uint64_t tag, data, flags;
    char bytes[BYTES];
};

/* The messages of one sender to the owner of the file. */
struct ring {
    atomic_int claimed;
    char from[NAME];
    struct slot slots[SLOTS];
};

struct receive {
    uint64_t tag, ignore;
    fi_addr_t from;
    void *buffer, *context;
    size_t length;
};

struct letter {
    struct letter *next;
    uint64_t tag, data, flags;
    uint32_t length;
    char from[NAME], bytes[];
};

static char own[NAME], names[PEERS][NAME];
static struct ring *inbox, *outbox[PEERS];
static unsigned sent[PEERS], taken[SENDERS], known;
static struct receive posts[POSTS];
static unsigned posted;
static struct letter *first, **last = &first;
static struct fi_cq_tagged_entry done[POSTS];
static unsigned begin, end;

static long nothing(void) { return -FI_ENOSYS; }

static struct ring *map(const char *name, int flags)
{
    int file = shm_open(name, O_RDWR | flags, 0600);
    size_t length = SENDERS * sizeof(struct ring);
    if (file < 0 || (flags && ftruncate(file, length)))
        return NULL;
    void *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return at == MAP_FAILED ? NULL : at;
}

static void complete(void *context, uint64_t flags, size_t length, void *buffer, uint64_t tag,
                     uint64_t data)
{
    done[end++ % POSTS] = (struct fi_cq_tagged_entry){context, flags, length, buffer, data, tag};
}

static int is_from(fi_addr_t from, const char *name)
{
    return from == FI_ADDR_UNSPEC || !memcmp(names[from], name, NAME);
}

static void place(const struct receive *to, const char *bytes, size_t length, uint64_t tag,
                  uint64_t data, uint64_t flags)
{
    size_t fits = length < to->length ? length : to->length;
    memcpy(to->buffer, bytes, fits);
    complete(to->context, FI_RECV | FI_TAGGED | flags, fits, to->buffer, tag, data);
}

static void arrived(const char *from, const struct slot *slot)
{
    for (unsigned i = 0; i < posted; i++) {
        struct receive it = posts[i];
        if (((slot->tag ^ it.tag) & ~it.ignore) || !is_from(it.from, from))
            continue;
        posted--;
        memmove(&posts[i], &posts[i + 1], (posted - i) * sizeof *posts);
        place(&it, slot->bytes, slot->length, slot->tag, slot->data, slot->flags);
        return;
    }
    struct letter *letter = malloc(sizeof *letter + slot->length);
    *letter = (struct letter){NULL, slot->tag, slot->data, slot->flags, slot->length, {0}};
    memcpy(letter->from, from, NAME);
    memcpy(letter->bytes, slot->bytes, slot->length);
    *last = letter;
    last = &letter->next;
}

static void progress(void)
{
    for (int i = 0; i < SENDERS; i++) {
        if (atomic_load_explicit(&inbox[i].claimed, memory_order_acquire) != 2)
            break;
        struct slot *slot = &inbox[i].slots[taken[i] % SLOTS];
        while (atomic_load_explicit(&slot->full, memory_order_acquire)) {
            arrived(inbox[i].from, slot);
            atomic_store_explicit(&slot->full, 0, memory_order_release);
            slot = &inbox[i].slots[++taken[i] % SLOTS];
        }
    }
}

/* The own ring in the file of a peer, claimed by the first message. */
static int claim(fi_addr_t to)
{
    struct ring *all = map(names[to], 0);
    for (int i = 0; all && i < SENDERS; i++) {
        int none = 0;
        if (!atomic_compare_exchange_strong(&all[i].claimed, &none, 1))
            continue;
        memcpy(all[i].from, own, NAME);
        atomic_store_explicit(&all[i].claimed, 2, memory_order_release);
        outbox[to] = &all[i];
        return 1;
    }
    return 0;
}

static ssize_t put(fi_addr_t to, const void *bytes, size_t length, uint64_t tag, uint64_t data,
                   uint64_t flags)
{
    if (length > BYTES || (!outbox[to] && !claim(to)))
        return -FI_EMSGSIZE;
    struct slot *slot = &outbox[to]->slots[sent[to] % SLOTS];
    if (atomic_load_explicit(&slot->full, memory_order_acquire)) {
        progress();
        return -FI_EAGAIN;
    }
    slot->tag = tag, slot->data = data, slot->flags = flags, slot->length = length;
    memcpy(slot->bytes, bytes, length);
    atomic_store_explicit(&slot->full, 1, memory_order_release);
    sent[to]++;
    return 0;
}

static ssize_t tinjectdata(struct fid_ep *ep, const void *bytes, size_t length, uint64_t data,
                           fi_addr_t to, uint64_t tag)
{
    return put(to, bytes, length, tag, data, FI_REMOTE_CQ_DATA);
}

static ssize_t tinject(struct fid_ep *ep, const void *bytes, size_t length, fi_addr_t to,
                       uint64_t tag)
{
    return put(to, bytes, length, tag, 0, 0);
}

static ssize_t tsenddata(struct fid_ep *ep, const void *bytes, size_t length, void *descriptor,
                         uint64_t data, fi_addr_t to, uint64_t tag, void *context)
{
    ssize_t result = put(to, bytes, length, tag, data, FI_REMOTE_CQ_DATA);
    if (!result)
        complete(context, FI_SEND | FI_TAGGED, length, (void *)bytes, tag, 0);
    return result;
}

static ssize_t tsend(struct fid_ep *ep, const void *bytes, size_t length, void *descriptor,
                     fi_addr_t to, uint64_t tag, void *context)
{
    ssize_t result = put(to, bytes, length, tag, 0, 0);
    if (!result)
        complete(context, FI_SEND | FI_TAGGED, length, (void *)bytes, tag, 0);
    return result;
}

static ssize_t trecv(struct fid_ep *ep, void *buffer, size_t length, void *descriptor,
                     fi_addr_t from, uint64_t tag, uint64_t ignore, void *context)
{
    struct receive it = {tag, ignore, from, buffer, context, length};
    for (struct letter **at = &first; *at; at = &(*at)->next) {
        struct letter *letter = *at;
        if (((letter->tag ^ tag) & ~ignore) || !is_from(from, letter->from))
            continue;
        place(&it, letter->bytes, letter->length, letter->tag, letter->data, letter->flags);
        *at = letter->next;
        if (last == &letter->next)
            last = at;
        free(letter);
        return 0;
    }
    if (posted == POSTS)
        return -FI_EAGAIN;
    posts[posted++] = it;
    return 0;
}

static ssize_t cq_read(struct fid_cq *cq, void *buffer, size_t count)
{
    progress();
    size_t n = 0;
    for (; n < count && begin != end; n++)
        ((struct fi_cq_tagged_entry *)buffer)[n] = done[begin++ % POSTS];
    return n ? (ssize_t)n : -FI_EAGAIN;
}

static int av_insert(struct fid_av *av, const void *addresses, size_t count, fi_addr_t *to,
                     uint64_t flags, void *context)
{
    size_t i = 0;
    for (; i < count && known < PEERS; i++, known++) {
        memcpy(names[known], (const char *)addresses + i * NAME, NAME);
        if (to)
            to[i] = known;
    }
    return i;
}

static int getname(fid_t fid, void *name, size_t *length)
{
    size_t room = *length;
    *length = NAME;
    if (room < NAME)
        return -FI_ETOOSMALL;
    memcpy(name, own, NAME);
    return 0;
}

static int succeed(void) { return 0; }

static int cancel(fid_t fid, void *context)
{
    for (unsigned i = 0; i < posted; i++)
        if (posts[i].context == context)
            posts[i] = posts[--posted];
    return 0;
}

static int leave(struct fid *fid)
{
    return shm_unlink(own) && errno != ENOENT ? -errno : 0;
}

#define NO (void *)nothing
static struct fi_ops fid_ops = {sizeof fid_ops, (void *)succeed, (void *)succeed, (void *)succeed,
                                NO, NO, NO};
static struct fi_ops ep_fid_ops = {sizeof ep_fid_ops, leave, (void *)succeed, (void *)succeed,
                                   NO, NO, NO};
static struct fi_ops_cq cq_ops = {sizeof cq_ops, cq_read, NO, NO, NO, NO, NO, NO};
static struct fid_cq cq = {{FI_CLASS_CQ, NULL, &fid_ops}, &cq_ops};
static struct fi_ops_av av_ops = {sizeof av_ops, av_insert, NO, NO, (void *)succeed, NO, NO, NO};
static struct fid_av av = {{FI_CLASS_AV, NULL, &fid_ops}, &av_ops};
static struct fi_ops_ep ep_ops = {sizeof ep_ops, (void *)cancel, NO, NO, NO, NO, NO, NO};
static struct fi_ops_cm cm_ops = {sizeof cm_ops, NO, getname, NO, NO, NO, NO, NO, NO, NO};
static struct fi_ops_tagged tagged_ops = {sizeof tagged_ops, trecv, NO, NO, tsend, NO, NO,
                                          tinject, tsenddata, tinjectdata};
static struct fid_ep ep = {.fid = {FI_CLASS_EP, NULL, &ep_fid_ops}, .ops = &ep_ops, .cm = &cm_ops,
                           .tagged = &tagged_ops};

static int open_ep(struct fid_domain *domain, struct fi_info *info, struct fid_ep **made, void *c)
{
    snprintf(own, NAME, "/weft-floor-%d", getpid());
    inbox = map(own, O_CREAT | O_EXCL);
    *made = &ep;
    return inbox ? 0 : -FI_ENOMEM;
}

static int open_cq(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **made,
                   void *context)
{
    *made = &cq;
    return attr->format == FI_CQ_FORMAT_TAGGED ? 0 : -FI_ENOSYS;
}

static int open_av(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **made,
                   void *context)
{
    *made = &av;
    return 0;
}

static struct fi_ops_domain domain_ops = {sizeof domain_ops, open_av, open_cq, open_ep, NO, NO, NO,
                                          NO, NO, NO, NO, NO};
static struct fi_ops_mr mr_ops = {sizeof mr_ops, NO, NO, NO};
static struct fid_domain domain = {{FI_CLASS_DOMAIN, NULL, &fid_ops}, &domain_ops, &mr_ops};

static int open_domain(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **made,
                       void *c)
{
    *made = &domain;
    return 0;
}

static struct fi_ops_fabric fabric_ops = {sizeof fabric_ops, open_domain, NO, NO, NO, NO, NO};
static struct fid_fabric fabric = {{FI_CLASS_FABRIC, NULL, &fid_ops}, &fabric_ops, 0};

static int open_fabric(struct fi_fabric_attr *attr, struct fid_fabric **made, void *context)
{
    *made = &fabric;
    return 0;
}

static int getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
                   const struct fi_info *hints, struct fi_info **found)
{
    uint64_t caps = FI_TAGGED | FI_SEND | FI_RECV | FI_DIRECTED_RECV |
                    FI_LOCAL_COMM | FI_REMOTE_COMM;
    int type = hints && hints->ep_attr ? hints->ep_attr->type : FI_EP_UNSPEC;
    if (!hints || (hints->caps & ~caps) || (type != FI_EP_RDM && type != FI_EP_UNSPEC))
        return -FI_ENODATA;
    struct fi_info *info = fi_dupinfo(NULL);
    info->caps = caps;
    info->addr_format = FI_ADDR_STR;
    info->src_addr = strdup("/weft-floor-to-be-opened-------");
    info->src_addrlen = NAME;
    info->tx_attr->caps = caps & ~FI_RECV;
    info->rx_attr->caps = caps & ~FI_SEND;
    info->tx_attr->inject_size = BYTES;
    info->tx_attr->msg_order = info->rx_attr->msg_order = FI_ORDER_SAS;
    info->tx_attr->size = info->rx_attr->size = SLOTS;
    info->tx_attr->iov_limit = info->rx_attr->iov_limit = 1;
    info->ep_attr->type = FI_EP_RDM;
    info->ep_attr->max_msg_size = BYTES;
    info->ep_attr->mem_tag_format = 0xaaaaaaaaaaaaaaaa;
    info->ep_attr->tx_ctx_cnt = info->ep_attr->rx_ctx_cnt = 1;
    info->domain_attr->name = strdup("floor");
    info->domain_attr->threading = FI_THREAD_DOMAIN;
    info->domain_attr->control_progress = info->domain_attr->data_progress = FI_PROGRESS_MANUAL;
    info->domain_attr->resource_mgmt = FI_RM_ENABLED;
    info->domain_attr->av_type = FI_AV_TABLE;
    info->domain_attr->cq_data_size = 8;
    info->domain_attr->cq_cnt = info->domain_attr->ep_cnt = 1;
    info->domain_attr->tx_ctx_cnt = info->domain_attr->rx_ctx_cnt = 1;
    info->domain_attr->max_ep_tx_ctx = info->domain_attr->max_ep_rx_ctx = 1;
    info->fabric_attr->name = strdup("floor");
    info->fabric_attr->api_version = version;
    *found = info;
    return 0;
}

static struct fi_provider provider = {.version = FI_VERSION(1, 0), .fi_version = FI_VERSION(1, 17),
                                      .name = "floor", .getinfo = getinfo, .fabric = open_fabric};

struct fi_provider *fi_prov_ini(void) { return &provider; }
