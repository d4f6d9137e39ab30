/* Loads libfabric, opens an endpoint of the provider, closes all, and unloads libfabric again. An
 * object that others hold is not closed. */
#include <dlfcn.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY(call)                                                                                  \
    do {                                                                                           \
        long code = (call);                                                                        \
        if (code != 0) {                                                                           \
            printf("line %d: %s: %ld\n", __LINE__, #call, code);                                   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static void once(void)
{
    void *library = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
    TRY(!library);
    int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *,
                   struct fi_info **) = dlsym(library, "fi_getinfo");
    void (*freeinfo)(struct fi_info *) = dlsym(library, "fi_freeinfo");
    struct fi_info *(*duplicate)(const struct fi_info *) = dlsym(library, "fi_dupinfo");
    int (*open_fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *) =
        dlsym(library, "fi_fabric");
    struct fi_info *hints = duplicate(NULL), *found;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_ep *ep;
    struct fid_cq *cq;
    struct fid_av *av;
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_CONTEXT};
    struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
    hints->fabric_attr->prov_name = strdup("weft");
    TRY(getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &found));
    TRY(open_fabric(found->fabric_attr, &fabric, NULL));
    TRY(fi_domain(fabric, found, &domain, NULL));
    TRY(fi_endpoint(domain, found, &ep, NULL));
    TRY(fi_cq_open(domain, &cq_attr, &cq, NULL));
    TRY(fi_av_open(domain, &av_attr, &av, NULL));
    TRY(fi_ep_bind(ep, &cq->fid, FI_SEND | FI_RECV));
    TRY(fi_ep_bind(ep, &av->fid, 0));
    TRY(fi_enable(ep));
    TRY(fi_close(&domain->fid) != -FI_EBUSY);
    TRY(fi_close(&cq->fid) != -FI_EBUSY);
    TRY(fi_close(&ep->fid));
    TRY(fi_close(&av->fid));
    TRY(fi_close(&cq->fid));
    TRY(fi_close(&domain->fid));
    TRY(fi_close(&fabric->fid));
    freeinfo(found);
    freeinfo(hints);
    TRY(dlclose(library));
}

int main(void)
{
    for (int i = 0; i < 3; i++)
        once();
    printf("all right\n");
    return 0;
}
