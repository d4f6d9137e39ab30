//! The list of cases, and the macros that make a `#[test]` of each.
//!
//! Invariant: every public function of a case module is in the list. A test compares the list with
//! the sources.

/// Makes one `#[test]` for each case of the suite, for a type that implements [`crate::Bench`]. A
/// function that is given, too, is called before each case.
#[macro_export]
macro_rules! conformance_tests {
    ($bench:ty) => {
        $crate::conformance_tests!($bench, $crate::nothing_before);
    };
    ($bench:ty, $before:path) => {
        $crate::each_group!(case_group, $bench, $before);
    };
}

/// The cases of the suite for a type that implements [`crate::Bench`], for a test runner of one's
/// own: pairs of the group's name and a list of cases by name.
#[macro_export]
macro_rules! conformance_list {
    ($bench:ty) => {{
        let mut groups: Vec<(&'static str, Vec<(&'static str, fn())>)> = Vec::new();
        $crate::each_group!(list_group, groups, $bench);
        groups
    }};
}

/// Calls a macro of this crate for each group of cases, with the arguments that are given.
#[doc(hidden)]
#[macro_export]
macro_rules! each_group {
    ($each:ident, $($arguments:tt)*) => {
        $crate::$each!($($arguments)*; addressing:
            an_address_is_exact_and_its_own,
            a_wildcard_open_takes_free_vpids,
            an_exact_open_gets_the_requested_vpid,
            a_vpid_in_use_is_refused_until_its_owner_closes,
            a_node_without_free_vpids_reports_it,
            a_wildcard_cannot_be_connected,
            an_address_nobody_has_is_not_found,
            the_same_address_has_the_same_handle,
            an_unknown_handle_is_refused_everywhere,
            another_partition_is_not_found,
            a_partition_of_another_user_is_forbidden,
            another_user_is_not_found,
        );
        $crate::$each!($($arguments)*; mailbox:
            every_size_arrives_unchanged,
            a_message_that_is_too_long_is_refused,
            parts_are_gathered_in_order,
            tags_and_kinds_arrive_as_sent,
            a_fifth_kind_is_refused,
            parts_are_free_when_the_call_returns,
            ten_thousand_messages_arrive_in_order,
            both_directions_work_at_once,
            a_full_mailbox_refuses_and_then_has_room,
            room_is_reported_only_after_a_refusal,
            a_full_mailbox_blocks_only_its_own_sender,
            many_senders_lose_and_double_nothing,
            a_poll_keeps_to_its_budget,
        );
        $crate::$each!($($arguments)*; group:
            a_broadcast_reaches_everybody_else_once,
            only_members_get_what_is_sent_to_a_group,
            a_former_member_of_a_group_gets_no_messages,
            a_group_without_members_reaches_nobody,
            the_broadcast_group_cannot_be_joined_or_left,
            a_multicast_is_checked_like_a_message,
            a_multicast_reaches_all_or_none,
            the_end_of_a_full_member_is_room_in_its_group,
            multicasts_and_messages_keep_their_order,
            all_members_hear_each_other_once,
        );
        $crate::$each!($($arguments)*; memory:
            a_fresh_region_is_zero_and_keeps_what_is_written,
            an_owner_cannot_access_bytes_outside_its_region,
            an_empty_region_cannot_be_registered,
            an_invalid_grant_is_refused,
            a_foreign_region_cannot_be_granted,
            each_right_allows_what_it_names_and_nothing_else,
            what_leaves_a_region_is_refused,
            a_range_outside_the_local_region_is_refused,
            a_revoked_key_is_worthless,
            an_operation_before_a_revocation_is_there_or_fails,
            a_new_grant_does_not_revive_an_old_key,
            two_keys_of_a_region_are_independent,
            a_key_that_was_never_granted_is_refused,
            a_key_of_another_partition_is_refused,
        );
        $crate::$each!($($arguments)*; familiar:
            a_familiar_key_keeps_to_its_range,
            a_familiar_key_allows_what_it_grants,
            a_familiar_key_that_was_revoked_is_worthless,
            familiar_keys_are_told_apart,
            a_familiar_key_of_a_dead_peer_is_refused,
            operations_by_a_familiar_key_are_counted,
            a_familiar_key_reaches_no_local_bytes_outside,
        );
        $crate::$each!($($arguments)*; rma:
            a_put_of_any_size_arrives_whole,
            a_put_from_a_region_arrives_whole,
            a_get_of_any_size_reads_the_region,
            every_offset_inside_a_cache_line_works,
            bytes_of_a_put_are_captured_by_the_call,
            an_immediate_put_writes_its_low_bytes,
            an_immediate_put_of_0_or_9_bytes_is_refused,
            a_fence_completes_after_everything_before_it,
            a_fence_without_operations_completes,
            more_operations_than_can_be_pending_are_refused_or_end,
            both_sides_put_and_get_at_once,
        );
        $crate::$each!($($arguments)*; vector:
            a_vectored_put_writes_every_range_and_tells_it_once,
            a_vectored_put_writes_all_or_nothing,
            a_vectored_operation_without_ranges_is_refused,
            a_vectored_get_reads_every_range,
            a_signal_sets_or_adds,
            a_signal_follows_its_data,
            a_signal_and_its_data_are_refused_together,
        );
        $crate::$each!($($arguments)*; ordering:
            what_comes_after_an_order_takes_effect_after,
            a_message_after_an_order_tells_that_puts_arrived,
            an_ordered_operation_takes_effect_after_all_before,
            an_ordered_operation_of_any_kind_comes_after_puts,
            a_fence_of_all_peers_comes_last,
            a_fence_of_all_peers_does_not_wait_for_the_dead,
            a_quiet_operation_reports_errors_alone,
            quiet_operations_give_their_places_back,
            a_batch_arrives_with_its_last_operation,
            a_batch_without_its_last_operation_arrives,
            a_cancelled_operation_has_done_nothing,
            an_operation_that_is_cancelled_on_its_way_tells_whether_it_is_done,
            a_cancel_without_its_operation_has_no_effect,
        );
        $crate::$each!($($arguments)*; membership:
            a_disconnected_peer_is_down_at_both_ends,
            last_words_arrive_before_a_disconnect,
            what_is_pending_ends_with_a_disconnect,
            a_pair_can_be_made_again,
            an_unknown_peer_cannot_be_disconnected,
            a_key_of_a_range_reaches_that_range_alone,
            a_key_of_one_peer_serves_nobody_else,
            a_key_of_one_peer_does_not_serve_its_successor,
            a_key_can_be_resolved_before_its_use,
        );
        $crate::$each!($($arguments)*; partition:
            a_service_lets_the_named_users_in,
            a_service_refuses_everybody_else,
            a_service_ends_with_its_endpoint,
            a_service_is_found_at_its_node,
            a_name_is_offered_once,
            a_name_of_another_user_cannot_be_offered,
            a_partition_is_offered_by_its_user_alone,
            a_ticket_opens_one_endpoint,
            a_wrong_ticket_is_refused,
            a_ticket_is_good_for_its_time,
            a_ticket_of_an_ended_endpoint_is_void,
            tickets_are_bounded,
            a_guest_gets_no_more_than_a_member,
        );
        $crate::$each!($($arguments)*; notification:
            every_combination_of_table_3_1_tells_the_right_sides,
            a_responder_for_a_put_is_refused,
            data_is_there_before_its_notification,
            a_get_has_its_data_before_its_notification,
            notifications_arrive_in_order,
            notifications_and_messages_keep_their_order,
            a_notification_put_carries_class_and_value,
            a_full_notification_queue_refuses_and_then_has_room,
            a_failed_operation_has_no_completer_notification,
        );
        $crate::$each!($($arguments)*; atomic:
            every_atomic_works_in_both_widths,
            an_atomic_changes_only_its_word,
            a_misaligned_atomic_is_refused,
            an_atomic_read_needs_the_right_to_read_alone,
            additions_of_many_endpoints_sum_exactly,
            additions_from_all_sides_sum_exactly,
            one_of_many_compare_swaps_wins,
        );
        $crate::$each!($($arguments)*; window:
            a_window_stores_and_loads,
            a_window_keeps_to_its_region,
            a_window_loads_and_stores_words_of_each_width,
            a_word_that_is_misplaced_or_not_allowed_is_refused,
            a_window_gives_the_rights_of_its_key,
            a_window_needs_a_valid_key,
            a_window_dies_with_its_key,
        );
        $crate::$each!($($arguments)*; register:
            a_fresh_register_file_is_zero,
            registers_count_messages,
            registers_count_operations,
            registers_count_refusals_and_errors,
        );
        $crate::$each!($($arguments)*; limits:
            no_limit_is_below_extolls,
            an_endpoint_can_be_in_every_group,
            more_than_a_descriptor_goes_in_one_call,
            a_mailbox_is_as_deep_as_was_asked_for,
            as_many_operations_wait_as_were_asked_for,
            an_endpoint_has_as_many_peers_as_it_asked_for,
            a_group_minds_the_limits_of_peers,
            an_endpoint_has_as_many_keys_as_it_asked_for,
            an_endpoint_has_as_many_regions_as_it_asked_for,
            limits_end_where_the_transport_does,
            a_class_is_told_as_it_is_treated,
            an_unknown_rail_is_refused,
            each_rail_can_be_asked_for,
            a_rail_that_is_cut_disturbs_no_other,
        );
        $crate::$each!($($arguments)*; failure:
            a_dead_peer_is_reported_once,
            a_closed_peer_is_reported_once,
            an_address_that_is_used_again_is_another_peer,
            every_call_on_a_dead_peer_fails,
            what_was_pending_ends_before_the_report,
            last_words_arrive_before_the_report,
            a_group_works_without_its_dead_members,
            a_sender_without_room_gets_the_report_of_the_death,
            a_successor_at_the_same_address_is_another_peer,
            own_memory_survives_the_death_of_a_peer,
        );
        $crate::$each!($($arguments)*; waiting:
            a_wait_for_nothing_times_out,
            a_wait_ends_with_a_message,
            a_wait_ends_with_a_notification,
            arming_with_events_waiting_is_refused,
            sleeping_is_offered_as_the_capabilities_say,
            what_comes_after_arming_is_not_missed,
        );
    };
}

/// Makes one `#[test]` for each case of memory of the host, for a type that implements
/// [`crate::HostBench`]. A function that is given, too, is called before each case.
#[macro_export]
macro_rules! host_memory_tests {
    ($bench:ty) => {
        $crate::host_memory_tests!($bench, $crate::nothing_before);
    };
    ($bench:ty, $before:path) => {
        $crate::each_host_group!(case_group, $bench, $before);
    };
}

/// The cases of memory of the host, as [`conformance_list`] has those of the suite.
#[macro_export]
macro_rules! host_memory_list {
    ($bench:ty) => {{
        let mut groups: Vec<(&'static str, Vec<(&'static str, fn())>)> = Vec::new();
        $crate::each_host_group!(list_group, groups, $bench);
        groups
    }};
}

/// As [`each_group`], for memory of the host.
#[doc(hidden)]
#[macro_export]
macro_rules! each_host_group {
    ($each:ident, $($arguments:tt)*) => {
        $crate::$each!($($arguments)*; host_memory:
            memory_of_each_kind_keeps_its_bytes,
            memory_of_each_kind_is_a_source_and_a_sink,
            memory_of_each_kind_survives_a_revocation,
            one_memory_serves_several_endpoints,
            memory_of_each_kind_is_reached_as_the_endpoint_says,
            one_operation_reaches_memory_of_different_kinds,
            operations_on_memory_of_different_kinds_keep_their_order,
            operations_on_memory_of_each_kind_end_with_the_pair,
        );
    };
}

/// Makes one `#[test]` for each case of lanes, for a type that implements [`crate::LaneBench`].
#[macro_export]
macro_rules! lane_tests {
    ($bench:ty) => {
        $crate::case_group!($bench, $crate::nothing_before; lane:
            a_lane_carries_messages_of_every_size,
            a_lane_keeps_its_messages_in_order,
            a_full_lane_mailbox_refuses_until_slots_come_back,
            slots_come_back_in_batches_and_never_too_many,
            a_slot_can_be_read_in_pieces,
            a_sink_wraps_around_at_every_place,
            a_sink_fills_to_its_last_byte,
            a_control_word_comes_after_what_was_sent_before,
            nothing_is_visible_before_what_it_tells_of,
            attention_is_claimed_once,
            a_rung_word_can_be_armed_again,
            the_four_attention_words_are_independent,
            a_sleeper_never_misses_data,
            a_sleeper_never_misses_room,
            a_sleeper_never_misses_room_that_comes_in_pieces,
            a_sleeper_never_misses_a_control_word,
            what_has_landed_is_visible,
            a_sender_looks_back_at_what_was_not_taken,
            the_death_of_an_end_ends_the_lane,
            a_hostile_length_closes_the_lane,
            hostile_counts_never_give_more_room_than_there_is,
        );
    };
}

/// Adds the cases of one module to a list.
#[doc(hidden)]
#[macro_export]
macro_rules! list_group {
    ($groups:ident, $bench:ty; $group:ident: $($case:ident),* $(,)?) => {
        $groups.push((
            stringify!($group),
            vec![$((stringify!($case), $crate::$group::$case::<$bench> as fn())),*],
        ));
    };
}

/// Makes one `#[test]` for each case of one module.
#[doc(hidden)]
#[macro_export]
macro_rules! case_group {
    ($bench:ty, $before:path; $group:ident: $($case:ident),* $(,)?) => {
        mod $group {
            #[allow(unused_imports, reason = "the type may be named by an absolute path")]
            use super::*;
            $(
                #[test]
                fn $case() {
                    $before();
                    $crate::$group::$case::<$bench>();
                }
            )*
        }
    };
}

#[cfg(test)]
mod tests {
    /// The sources of the case modules, with the modules' names.
    const SOURCES: &[(&str, &str)] = &[
        ("addressing", include_str!("addressing.rs")),
        ("mailbox", include_str!("mailbox.rs")),
        ("group", include_str!("group.rs")),
        ("memory", include_str!("memory.rs")),
        ("familiar", include_str!("familiar.rs")),
        ("rma", include_str!("rma.rs")),
        ("vector", include_str!("vector.rs")),
        ("ordering", include_str!("ordering.rs")),
        ("membership", include_str!("membership.rs")),
        ("partition", include_str!("partition.rs")),
        ("notification", include_str!("notification.rs")),
        ("atomic", include_str!("atomic.rs")),
        ("window", include_str!("window.rs")),
        ("register", include_str!("register.rs")),
        ("limits", include_str!("limits.rs")),
        ("failure", include_str!("failure.rs")),
        ("waiting", include_str!("waiting.rs")),
        ("host_memory", include_str!("host_memory.rs")),
        ("lane", include_str!("lane.rs")),
    ];

    #[test]
    fn every_case_is_in_the_list() {
        let list = include_str!("cases.rs");
        let mut count = 0;
        for (group, source) in SOURCES {
            let start = list.find(&format!("; {group}:")).expect("the module is in the list");
            let part = &list[start..];
            let part = &part[..part.find(");").expect("the group ends")];
            for line in source.lines().filter(|line| line.starts_with("pub fn ")) {
                let name = line["pub fn ".len()..].split('<').next().expect("a name");
                let entry = format!(" {name},\n");
                assert!(part.contains(&entry), "{group}::{name} is not in the list");
                count += 1;
            }
        }
        assert!(count >= 90, "{count} cases are too few");
    }
}
