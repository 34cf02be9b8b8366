/* The names, types and numbers of libsharp_coll's 3.x interface, written out for tests: those of the double
 * (tests/doubles/sharp_coll.c), and the checks of the layout table. It is no header of the vendor. */
#ifndef TESTS_SHARP_COLL_H
#define TESTS_SHARP_COLL_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum sharp_datatype {
    SHARP_DTYPE_UNSIGNED = 0, SHARP_DTYPE_INT = 1, SHARP_DTYPE_UNSIGNED_LONG = 2, SHARP_DTYPE_LONG = 3,
    SHARP_DTYPE_FLOAT = 4, SHARP_DTYPE_DOUBLE = 5, SHARP_DTYPE_UNSIGNED_SHORT = 6, SHARP_DTYPE_SHORT = 7,
    SHARP_DTYPE_FLOAT_SHORT = 8, SHARP_DTYPE_BFLOAT16 = 9, SHARP_DTYPE_UINT8 = 10, SHARP_DTYPE_INT8 = 11,
    SHARP_DTYPE_NULL = 12
};

enum sharp_reduce_op {
    SHARP_OP_MAX = 0, SHARP_OP_MIN = 1, SHARP_OP_SUM = 2, SHARP_OP_PROD = 3, SHARP_OP_LAND = 4,
    SHARP_OP_BAND = 5, SHARP_OP_LOR = 6, SHARP_OP_BOR = 7, SHARP_OP_LXOR = 8, SHARP_OP_BXOR = 9,
    SHARP_OP_MAXLOC = 10, SHARP_OP_MINLOC = 11, SHARP_OP_NULL = 12
};

enum sharp_error_no {
    SHARP_COLL_SUCCESS = 0, SHARP_COLL_ERROR = -1, SHARP_COLL_ENOT_SUPP = -2, SHARP_COLL_ENOMEM = -3,
    SHARP_COLL_EGROUP_ALLOC = -4, SHARP_COLL_ECONN_TREE = -5, SHARP_COLL_EGROUP_JOIN = -6,
    SHARP_COLL_EQUOTA = -7, SHARP_COLL_ESESS_INIT = -8, SHARP_COLL_EDEV = -9, SHARP_COLL_EINVAL = -10,
    SHARP_COLL_EJOB_CREATE = -11, SHARP_COLL_ETREE_INFO = -12, SHARP_COLL_ENOTREE = -13,
    SHARP_COLL_EGROUP_ID = -14, SHARP_COLL_EOOB = -15, SHARP_COLL_EGROUP_MCAST = -16,
    SHARP_COLL_EGROUP_TRIM = -17, SHARP_COLL_ELOCK_FAILED = -18, SHARP_COLL_ELOCK_DENIED = -19,
    SHARP_COLL_ENO_RESOURCE = -20
};

enum sharp_job_features {
    SHARP_FEATURE_LLT = 1, SHARP_FEATURE_REPRODUCIBLE = 2, SHARP_FEATURE_SAT = 4,
    SHARP_FEATURE_SAT_EXCLUSIVE_LOCK = 8
};

enum sharp_aggregation_mode {
    SHARP_AGGREGATION_NONE = 0, SHARP_AGGREGATION_DATAGRAM = 1, SHARP_AGGREGATION_STREAMING = 2
};

enum sharp_data_buffer_type { SHARP_DATA_BUFFER = 0, SHARP_DATA_IOV = 1 };

enum sharp_data_memory_type { SHARP_MEM_TYPE_HOST = 0, SHARP_MEM_TYPE_CUDA = 1, SHARP_MEM_TYPE_LAST = 2 };

enum { SHARP_COLL_HIDE_ERRORS = 1, SHARP_COLL_DISABLE_LAZY_GROUP_RESOURCE_ALLOC = 2 };

enum { SHARP_COLL_REG_FIELD_DMABUF_FD = 1, SHARP_COLL_REG_FIELD_DMABUF_OFFSET = 2 };

enum config_print_flags {
    SHARP_COLL_CONFIG_PRINT_CONFIG = 1, SHARP_COLL_CONFIG_PRINT_HEADER = 2, SHARP_COLL_CONFIG_PRINT_DOC = 4,
    SHARP_COLL_CONFIG_PRINT_HIDDEN = 8
};

struct sharp_coll_context;
struct sharp_coll_comm;

struct sharp_coll_config {
    const char *ib_dev_list;
    int user_progress_num_polls;
    int coll_timeout;
    uint32_t flags;
    int reserved[3];
};

struct sharp_coll_out_of_band_colls {
    int (*bcast)(void *context, void *buffer, int bytes, int root);
    int (*barrier)(void *context);
    int (*gather)(void *context, int root, void *own, void *all, int bytes);
};

struct sharp_coll_init_spec {
    uint64_t job_id;
    int world_rank;
    int world_size;
    int (*progress_func)(void);
    int group_channel_idx;
    struct sharp_coll_config config;
    struct sharp_coll_out_of_band_colls oob_colls;
    int world_local_rank;
    int enable_thread_support;
    void *oob_ctx;
    int reserved[4];
};

struct sharp_coll_comm_init_spec {
    int rank;
    int size;
    void *oob_ctx;
    const uint32_t *group_world_ranks;
    int reserved[2];
};

struct sharp_coll_caps {
    int sharp_pkt_version;
    uint64_t reserved[2];
    struct {
        uint64_t dtypes;
        uint64_t tag_dtypes;
        uint64_t reduce_ops;
        uint64_t feature_mask;
        uint64_t reserved[4];
    } support_mask;
    struct {
        int max_osts;
        int user_data_per_ost;
        int max_groups;
        int max_group_channels;
        int osts_per_group;
    } resources;
};

struct sharp_data_iov {
    void *ptr;
    size_t length;
    void *mem_handle;
};

struct sharp_coll_reg_params {
    uint64_t field_mask;
    int dmabuf_fd;
    size_t dmabuf_offset;
};

struct sharp_coll_data_desc {
    enum sharp_data_buffer_type type;
    enum sharp_data_memory_type mem_type;
    int reserved[2];
    union {
        struct {
            void *ptr;
            size_t length;
            void *mem_handle;
        } buffer;
        struct {
            unsigned count;
            struct sharp_data_iov *vector;
        } iov;
    };
};

struct sharp_coll_reduce_spec {
    int root;
    struct sharp_coll_data_desc sbuf_desc;
    struct sharp_coll_data_desc rbuf_desc;
    enum sharp_datatype dtype;
    size_t length;
    enum sharp_reduce_op op;
    enum sharp_datatype tag_dtype;
    enum sharp_aggregation_mode aggr_mode;
    int stream_lock_batch_size;
    size_t offset;
    int reserved[2];
};

struct sharp_coll_bcast_spec {
    int root;
    struct sharp_coll_data_desc buf_desc;
    size_t size;
    int reserved[4];
};

struct sharp_coll_gather_spec {
    struct sharp_coll_data_desc sbuf_desc;
    struct sharp_coll_data_desc rbuf_desc;
    enum sharp_datatype dtype;
    size_t size;
    size_t offset;
    int reserved[4];
};

extern const struct sharp_coll_config sharp_coll_default_config;

int sharp_coll_init(struct sharp_coll_init_spec *spec, struct sharp_coll_context **context);
int sharp_coll_finalize(struct sharp_coll_context *context);
int sharp_coll_caps_query(struct sharp_coll_context *context, struct sharp_coll_caps *caps);
int sharp_coll_progress(struct sharp_coll_context *context);
int sharp_coll_dump_stats(struct sharp_coll_context *context);
int sharp_coll_comm_init(struct sharp_coll_context *context, struct sharp_coll_comm_init_spec *spec,
                         struct sharp_coll_comm **comm);
int sharp_coll_comm_destroy(struct sharp_coll_comm *comm);
int sharp_coll_reg_mr(struct sharp_coll_context *context, void *buffer, size_t bytes, void **mr);
int sharp_coll_reg_mr_v2(struct sharp_coll_context *context, void *buffer, size_t bytes,
                         const struct sharp_coll_reg_params *params, void **mr);
int sharp_coll_dereg_mr(struct sharp_coll_context *context, void *mr);
int sharp_coll_do_allreduce(struct sharp_coll_comm *comm, struct sharp_coll_reduce_spec *spec);
int sharp_coll_do_allreduce_nb(struct sharp_coll_comm *comm, struct sharp_coll_reduce_spec *spec, void **handle);
int sharp_coll_do_reduce(struct sharp_coll_comm *comm, struct sharp_coll_reduce_spec *spec);
int sharp_coll_do_reduce_nb(struct sharp_coll_comm *comm, struct sharp_coll_reduce_spec *spec, void **handle);
int sharp_coll_do_reduce_scatter(struct sharp_coll_comm *comm, struct sharp_coll_reduce_spec *spec);
int sharp_coll_do_reduce_scatter_nb(struct sharp_coll_comm *comm, struct sharp_coll_reduce_spec *spec,
                                    void **handle);
int sharp_coll_do_allgather(struct sharp_coll_comm *comm, struct sharp_coll_gather_spec *spec);
int sharp_coll_do_allgather_nb(struct sharp_coll_comm *comm, struct sharp_coll_gather_spec *spec, void **handle);
int sharp_coll_do_bcast(struct sharp_coll_comm *comm, struct sharp_coll_bcast_spec *spec);
int sharp_coll_do_bcast_nb(struct sharp_coll_comm *comm, struct sharp_coll_bcast_spec *spec, void **handle);
int sharp_coll_do_barrier(struct sharp_coll_comm *comm);
int sharp_coll_do_barrier_nb(struct sharp_coll_comm *comm, void **handle);
int sharp_coll_req_test(void *handle);
int sharp_coll_req_wait(void *handle);
int sharp_coll_req_free(void *handle);
const char *sharp_coll_strerror(int error);
int sharp_coll_print_config(FILE *stream, enum config_print_flags flags, const char *name);

#endif
